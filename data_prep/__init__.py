"""Raw texts in, validated TSVs and a manifest out: the work behind `bertaccum prepare`."""
