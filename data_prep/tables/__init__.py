"""Reading tables of texts and labels: encoding, quoting, delimiter, header, columns, rows."""
