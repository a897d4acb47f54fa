"""Readers of sentences whose words have tags: CoNLL files, JSON Lines, and texts with spans.

In a CoNLL file, a line contains a word and its tag, and an empty line ends a sentence. An object of
JSON Lines contains lists of words and tags, or a text and its entities, as doccano, Label Studio
and Prodigy export them. Each sentence becomes a row with its words and its tags, separated by
spaces.

Sources: conll.uvt.nl for CoNLL-2003; universaldependencies.org/format.html for CoNLL-U;
doccano.github.io, labelstud.io/guide/export and prodi.gy/docs/api-interfaces for spans.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from bertaccum.errors import ConfigError, InputError
from bertaccum.system.phrases import counted, listed
from bertaccum.system.progress import Note
from data_prep.tables.cell_lists import items_in, switch
from data_prep.tables.columns import LABEL, TEXT, ReadOptions
from data_prep.tables.other_formats import parquet_records
from data_prep.tables.rows import Row
from data_prep.tables.spellings import visible
from data_prep.tables.text_files import TABLE_ENDINGS, ending, is_parquet, text_lines
from data_prep.tables.words import DROPPED, OUTSIDE, one_word, separated_words, word_spans

_JSON = frozenset({".json", ".jsonl", ".ndjson"})
_CONLL = frozenset({".conll", ".conllu", ".conllx", ".bio", ".iob", ".iob2"})
_SAMPLE, _FEW = 1000, 20
_DOCUMENT = "-DOCSTART-"
# Names of columns in the first line of a CoNLL file.
_WORD_NAMES = frozenset({"word", "words", "token", "tokens", "text", "form"})
_TAG_NAMES = frozenset({"tag", "tags", "label", "labels", "ner", "ner_tag", "ner_tags"})
_TAG_NAMES |= {"pos", "pos_tag", "pos_tags", "upos", "xpos", "chunk", "chunk_tag", "chunk_tags"}
# Lines of CoNLL-U for several words, such as 3-4, and for words that are not in the text.
_NO_WORD = re.compile(r"\d+[-.]\d+")
TAG_COLUMNS = ("ner_tags", "tags", "labels", "label", "pos_tags", "ner")
_WORDS = ("tokens", "words")
# A word and a full stop, which ends a text but no line of a CoNLL file.
_END_OF_TEXT = re.compile(r"\w[.!?]\s*$")
# Labels of Label Studio in HTML and in dialogues.
_OTHER_LABELS = frozenset({"hypertextlabels", "paragraphlabels"})
_REJECTED = ("reject", "ignore")  # Answers of annotators in Prodigy.
# Other lines that begin with a number sign may begin with a hashtag. Some comments of CoNLL-U, and
# all of CoNLL-2012 and JNLPBA, have no space.
_COMMENT = re.compile(r"#(\s|#|$|\S+\s*=|(begin|end)\s+document\b|(id|newdoc|newpar|sent_id)\s)")
# The start of an object or of a list of objects, unlike a bracket and its tag.
_IS_JSON = re.compile(r"""\s*(\[?\s*\{\s*("|\}|$)|\[\s*(\]\s*)?$)""")
_TEXTS, _SPANS = ("text", "data"), ("entities", "label", "labels", "spans")


def is_table(path: Path, reading: ReadOptions) -> bool:
    """Return whether each row of a file contains a sentence and its tags as text."""
    if reading.is_prepared(path):
        return True
    if ending(path) in _JSON | _CONLL or path.is_dir() or is_parquet(path):
        return False
    first = next((line for _, line in text_lines(path, reading.encoding) if line.strip()), "")
    header = {cell.strip() for cell in re.split("[,;\t|]", first)}
    if {reading.text_column, reading.label_column or LABEL} <= header or ending(path) == ".csv":
        return True
    if reading.label_column is not None or reading.text_column not in header:
        return False
    # Without labels, the header of a CoNLL file may be that of a table without the tags.
    cells = _cells(first, tabs=True)
    return not _names_columns(cells, 0) or any(
        " " in _cells(line, tabs=True)[0].strip() for line in _sample(path, reading)
    )


def refuse_conll(path: Path) -> None:
    """Raise InputError if a file is a CoNLL file by its name; its lines are no texts."""
    if ending(path) in _CONLL:
        what = "has a word in each line, which only the task token-classification reads"
        remedy = "choose this task or a run of it, or write a text in each line of another file"
        raise InputError(what, remedy, path=path)


def has_sentences(path: Path, reading: ReadOptions) -> bool:
    """Return whether a file contains sentences as words, not a text in each line."""
    if ending(path) in TABLE_ENDINGS | _CONLL or reading.is_prepared(path) or is_parquet(path):
        return True
    sample = _sample(path, reading)
    widths = Counter(len(line.split()) for line in sample if line.strip())
    [(width, usual)] = widths.most_common(1) or [(0, 0)]
    texts = sum(bool(_END_OF_TEXT.search(line)) for line in sample) if width > 1 else 0
    return 0.9 * widths.total() < usual < len(sample) and texts <= usual / 2


def _sample(path: Path, reading: ReadOptions) -> list[str]:
    """Return the first lines of a file, without comments, whose columns are those of a text."""
    lines = [line for _, line in islice(text_lines(path, reading.encoding), _SAMPLE)]
    return [line for line in lines if not re.match(r"#\s", line)] or lines


def of_table(rows: Iterator[Row], path: Path, reading: ReadOptions, note: Note) -> Iterator[Row]:
    """Yield the rows of a table with a sentence and its tags in each row.

    Words and tags are separated by spaces, or are lists as pandas writes them.
    """
    found = _of_cells(rows, path, reading)
    return found if reading.label_column is None else _with_words(found, path, note)


def _of_cells(rows: Iterator[Row], path: Path, reading: ReadOptions) -> Iterator[Row]:
    single, many, prepared = 0, 0, reading.is_prepared(path)
    for row in rows:
        in_text, in_label = (None, None) if prepared else _lists(row, path)
        words = separated_words(row.text) if in_text is None else in_text
        tags = row.label.split() if in_label is None and row.label is not None else in_label
        tags = tags and [_named(tag, reading.tag_names, path, row.row) for tag in tags]
        is_unlabeled = row.label == "" and reading.may_lack_labels
        if tags is not None and len(tags) != len(words) and not is_unlabeled:
            what = f"has {counted(len(words), 'word')} and {counted(len(tags), 'tag')}"
            raise InputError(what, "write one tag for each word", path=path, row=row.row)
        single, many = single + (len(words) == 1), many + 1
        label = None if tags is None else " ".join(tags)
        # A column named `text_pair` is no second text: only the words of one have tags.
        yield row._replace(label=label, text=" ".join(map(one_word, words)), pair=None)
    if many >= _FEW and single > 0.9 * many:
        what = f"{single:,} of {many:,} rows have only one word"
        remedy = "save a file with one word a row in CoNLL format, with a line between sentences"
        raise InputError(what, remedy, path=path)


def _lists(row: Row, path: Path) -> tuple[list[str] | None, list[str] | None]:
    """Return the words and the tags of a row, each of them None if its cell is no list."""
    cells = (row.text.strip(), row.label or "")
    words, tags = map(_items, cells)
    if tags is None and not {"'", '"'}.intersection(cells[0]):
        words = None  # A sentence such as [ 3 ].
    for cell, own, other in zip(cells, (words, tags), (tags, words), strict=True):
        if own is None and other is not None and cell.startswith("[") and cell.endswith("]"):
            what = f"the list {cell[:40]!r} cannot be read"
            raise InputError(what, "write it as JSON does", path=path, row=row.row)
    return words, tags


def _items(cell: str) -> list[str] | None:
    items = items_in(cell) if cell.startswith("[") else None
    # Words without quotes are a sentence, such as [ he said ].
    if items is None or not all(quoted or switch(item) is not None for item, quoted in items):
        return None
    return [item for item, _ in items]


def tagged_sentences(path: Path, reading: ReadOptions, note: Note) -> Iterator[Row]:
    """Yield the sentences of a file, with the line or the record where each begins.

    Args:
      reading: Columns of a CoNLL file are numbers; by default, the first one contains the words and
        the last one the tags.
    """
    for option in ("weight_column", "text_pair_column", "delimiter", "label_columns"):
        if getattr(reading, option):
            what = f"`{option}` applies to tables only, with a sentence in each row"
            raise ConfigError(what, f"omit `{option}`", path=path)
    if ending(path) not in _JSON and not is_parquet(path):
        first = next((line for _, line in text_lines(path, reading.encoding) if line.strip()), "")
        if ending(path) in _CONLL or not _IS_JSON.match(first):
            return _of_lines(path, reading, note)
    rows = _of_records(path, reading, note)
    return rows if reading.label_column is None else _with_words(rows, path, note)


def _with_words(rows: Iterator[Row], path: Path, note: Note) -> Iterator[Row]:
    """Yield the rows that have words; predictions are needed for the others as well."""
    empty = list[str]()
    for row in rows:
        if row.text:
            yield row
        else:
            empty.append(f"{row.row:,}")
    if empty:
        note(f"{path}: skipped rows without any word: {listed(empty)}")


# --- CoNLL ------------------------------------------------------------------------------


def _of_lines(path: Path, reading: ReadOptions, note: Note) -> Iterator[Row]:
    filled = [line.rstrip("\r\n") for line in _sample(path, reading) if line.strip()]
    if not filled:
        raise InputError("is empty", "add at least one sentence", path=path)
    tabs = sum("\t" in line for line in filled) > len(filled) // 2
    spaces, commas = (sum(by in line for line in filled) for by in " ,")
    if not tabs and commas > max(spaces, len(filled) // 2):
        what = "looks like a table, not like a CoNLL file with a word in each line"
        raise InputError(what, "separate the columns with tabs or spaces", path=path)
    counts = Counter(len(_cells(line, tabs)) for line in filled)
    width = counts.most_common(1)[0][0]
    word, tag = _column(reading, "text_column", TEXT, 1, width, path), None
    if reading.label_column is not None and (width > 1 or reading.label_column != LABEL):
        tag = _column(reading, "label_column", LABEL, width, width, path)
    if tag == word:
        what = f"`text_column` and `label_column` are both column {word + 1}"
        raise ConfigError(what, "choose the column of the tags", path=path)
    columns = f"words in column {word + 1}" + ("" if tag is None else f", tags in column {tag + 1}")
    note(f"{path}: {columns}, separated by {'tabs' if tabs else 'spaces'}")
    numbered = all(
        _cells(line, tabs)[0].partition("-")[0].partition(".")[0].isdecimal()
        for line in filled
        if not line.startswith("#")
    )
    last = width - 1 if tag is None else tag
    known: set[str] | None = None  # The cells of words in this column, read only for a comment.
    comments, first, start, words, tags = list[str](), True, 0, list[str](), list[str]()
    for row, line in text_lines(path, reading.encoding):
        cells = _cells(line.rstrip("\r\n"), tabs)
        if not line.strip():
            if words:
                yield _row(start, words, tags if tag is not None else None)
            words, tags = [], []
            continue
        if not words and len(cells) != width and _COMMENT.match(line):
            continue
        if line.startswith("#") and not words and width > 1 and line[1].isspace():
            if known is None:
                known = _cells_of_words(path, reading, tabs, width, last)
            if cells[last].strip() not in known:
                comments.append(f"{row:,}")
                continue
        if cells[0].startswith(_DOCUMENT):
            if words:
                yield _row(start, words, tags if tag is not None else None)
            words, tags = [], []
            continue
        if first and _names_columns(cells, word):
            said = ", ".join(cells)[:80]
            note(f"{path}: row {row} ({said}) is the header and is not read as data")
            first = False
            continue
        first = False
        if numbered and word and _NO_WORD.fullmatch(cells[0]):
            continue
        if len(cells) != width:
            what = f"has {counted(len(cells), 'column')}, but most lines have {width}"
            remedy = "give each word its tag, and separate sentences with empty lines"
            if line.startswith("#"):
                remedy += "; a comment begins with # and a space, before a sentence"
            raise InputError(what, remedy, path=path, row=row)
        start = start if words else row
        words.append(cells[word])
        if tag is not None:
            tags.append(_named(cells[tag].strip(), reading.tag_names, path, row))
    if words:
        yield _row(start, words, tags if tag is not None else None)
    if comments:
        note(f"{path}: skipped rows as comments, because no word has their tag: {listed(comments)}")


def _cells_of_words(
    path: Path, reading: ReadOptions, tabs: bool, width: int, column: int
) -> set[str]:
    """Return the different cells in a column, except in lines that may be comments."""
    lines = (line for _, line in text_lines(path, reading.encoding) if not line.startswith("#"))
    rows = (_cells(line.rstrip("\r\n"), tabs) for line in lines)
    return {cells[column].strip() for cells in rows if len(cells) == width}


def _names_columns(cells: Sequence[str], word: int) -> bool:
    """Return whether the cells of a line are the names of the columns, such as those of tags."""
    named = [cell.strip().casefold() for cell in cells]
    others = named[:word] + named[word + 1 :]
    return word < len(named) and named[word] in _WORD_NAMES and not _TAG_NAMES.isdisjoint(others)


def _cells(line: str, tabs: bool) -> list[str]:
    return line.split("\t") if tabs else line.split()


def _column(
    reading: ReadOptions, option: str, usual: str, default: int, width: int, path: Path
) -> int:
    given = getattr(reading, option)
    if given == usual:
        return default - 1
    if not given.isdecimal() or not 1 <= int(given) <= width:
        what = f"`{reading.shown(option)}` {given} is not one of the columns 1 to {width}"
        raise ConfigError(what, "count the columns of a CoNLL file from 1", path=path)
    return int(given) - 1


def _row(row: int, words: Sequence[str], tags: Sequence[str] | None) -> Row:
    label = None if tags is None else " ".join(tags)
    return Row(row, label, " ".join(map(one_word, words)))


def _checked(tag: str, path: Path, row: int) -> str:
    if not visible(tag) or any(map(str.isspace, tag)) or DROPPED.search(tag):
        what = f"has the tag {tag[:40]!r}" if tag else "has a word without a tag"
        raise InputError(what, "write one visible tag without spaces", path=path, row=row)
    return tag


# --- JSON -------------------------------------------------------------------------------


class _Marked(NamedTuple):
    """A text and its entities, as an export contains them."""

    row: int
    text: str
    spans: list[Any]


def _of_records(path: Path, reading: ReadOptions, note: Note) -> Iterator[Row]:
    # If a word recurs after an emoji, a place may fit the text of an entity however it is counted.
    # Such examples wait for one that tells how the file counts.
    waiting, is_unclear = list[Row | _Marked](), False
    in_units: bool | None = None
    for one in _examples(path, reading, note):
        if in_units is None and isinstance(one, _Marked) and one.spans and _is_wide(one.text):
            in_units = _counts_units(one, path)
            is_unclear = in_units is None
        waiting.append(one)
        if not is_unclear:
            yield from _finished(waiting, in_units, reading, path)
            waiting.clear()
    yield from _finished(waiting, in_units, reading, path)


def _examples(path: Path, reading: ReadOptions, note: Note) -> Iterator[Row | _Marked]:
    several, rejected = list[str](), list[str]()
    labelled = reading.label_column is not None
    for row, record in _records(path, reading.encoding):
        if not isinstance(record, dict):
            raise InputError("is not a JSON object", "write one per line", path=path, row=row)
        if labelled and "spans" in record and record.get("answer") in _REJECTED:
            rejected.append(f"{row:,}")
            continue
        task = record.get("data")
        if isinstance(task, dict):  # A task of Label Studio.
            annotations = _annotations(record, path, row) if labelled else [{}]
            several += [f"{row:,}"] if len(annotations) > 1 else []
            record = {**task, "entities": _of_label_studio(annotations[0], path, row)}
        words = _field(record, reading.text_column, TEXT, _WORDS)
        # Prodigy describes the tokens of a text by objects.
        if isinstance(words, list) and not (_objects(words) and "text" in record):
            yield _of_lists(words, record, reading, path, row)
            continue
        text = _field(record, reading.text_column, TEXT, _TEXTS)
        if not isinstance(text, str):
            what = f"has neither a list {_asked(reading.text_column, TEXT, 'tokens')} nor a text"
            remedy = _to_name("text_column", record)
            raise InputError(what, remedy, path=path, row=row)
        spans = _field(record, reading.label_column or "", LABEL, _SPANS) if labelled else []
        if not isinstance(spans, list):
            what = f"has no list {_asked(reading.label_column or '', LABEL, 'entities')}"
            remedy = _to_name("label_column", record)
            raise InputError(what, remedy, path=path, row=row)
        yield _Marked(row, text, spans)
    if several:
        note(f"{path}: these rows have several annotations; the first is read: {listed(several)}")
    if rejected:
        note(f"{path}: skipped rows whose answer is to reject or ignore them: {listed(rejected)}")


def _records(path: Path, encoding: str | None) -> Iterator[tuple[int, Any]]:
    if is_parquet(path):
        yield from enumerate(parquet_records(path), 1)
        return
    lines = text_lines(path, encoding)
    head = next(((row, line) for row, line in lines if line.strip()), None)
    try:
        if head and head[1].lstrip().startswith("["):
            whole = json.loads(head[1] + "".join(line for _, line in lines))
            yield from enumerate(whole, 1)
            return
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not valid JSON ({error})", "export it again", path=path) from None
    for row, line in text_lines(path, encoding):
        if line.strip():
            try:
                yield row, json.loads(line)
            except (ValueError, RecursionError) as error:
                what = f"is not valid JSON ({error})"
                raise InputError(what, "write an object per line", path=path, row=row) from None


def _field(record: dict[str, Any], given: str, usual: str, names: Sequence[str]) -> Any:
    """Return the value of the column that an option names or, by default, of one of `names`."""
    if given and given != usual:
        return record.get(given)
    return next((record[name] for name in names if name in record), None)


def _asked(given: str, usual: str, default: str) -> str:
    """Return the field that was looked for: the one that an option names, or the usual one."""
    return given if given != usual else default


def _to_name(option: str, record: dict[str, Any]) -> str:
    return f"name one of the fields here with `{option}`: {listed(list(record), 10)[:80]}"


def _of_lists(
    words: list[Any], record: dict[str, Any], reading: ReadOptions, path: Path, row: int
) -> Row:
    if not all(isinstance(word, str) for word in words):
        raise InputError("has a token that is not text", "correct it", path=path, row=row)
    if reading.label_column is None:
        return _row(row, words, None)
    tags = _field(record, reading.label_column, LABEL, TAG_COLUMNS)
    unlabeled = tags is None or (tags and reading.tag_names and {*map(str, tags)} == {"-1"})
    if unlabeled and reading.may_lack_labels:
        return _row(row, words, [])
    if not isinstance(tags, list):
        what = f"has no list {_asked(reading.label_column, LABEL, 'tags')}"
        raise InputError(what, _to_name("label_column", record), path=path, row=row)
    if len(tags) != len(words):
        what = f"has {counted(len(words), 'token')} and {counted(len(tags), 'tag')}"
        raise InputError(what, "write one tag for each token", path=path, row=row)
    named = [_named(tag, reading.tag_names, path, row) for tag in tags]
    return _row(row, words, named)


def _named(tag: Any, names: Sequence[str], path: Path, row: int) -> str:
    if names and (type(tag) is int or (isinstance(tag, str) and tag.isdecimal())):
        if not 0 <= int(tag) < len(names):
            what = f"the tag {tag} is not one of the numbers 0 to {len(names) - 1}"
            raise InputError(what, "correct it, or add its name to `tag_names`", path=path, row=row)
        return names[int(tag)]
    if type(tag) not in (int, str):
        raise InputError(f"the tag {tag!r} is not text", "correct it", path=path, row=row)
    return _checked(str(tag), path, row)


def _annotations(record: dict[str, Any], path: Path, row: int) -> list[dict[str, Any]]:
    annotations = _objects(record.get("annotations") or record.get("completions"))
    kept = [one for one in annotations if not one.get("was_cancelled")]
    if not kept:
        remedy = "annotate it, or delete it from the export"
        raise InputError("has no annotation", remedy, path=path, row=row)
    return kept


def _of_label_studio(annotation: dict[str, Any], path: Path, row: int) -> list[Any]:
    values = _objects([one.get("value") for one in _objects(annotation.get("result"))])
    for other in (name for value in values for name in value if name in _OTHER_LABELS):
        what = f"has {other}, whose places are not characters of a text"
        raise InputError(what, "export labels of plain text", path=path, row=row)
    return [value for value in values if "labels" in value]


def _objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list of an export; none if it is no list."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _is_wide(text: str) -> bool:
    """Return whether a text has more UTF-16 units than characters."""
    return len(text.encode("utf-16-le", "surrogatepass")) > 2 * len(text)


def _counts_units(marked: _Marked, path: Path) -> bool | None:
    """Return whether places count UTF-16 units, as JavaScript does, and not characters.

    None if the texts of the entities do not tell.
    """
    row, text, spans = marked
    for span in spans:
        start, end, _, said = _fields(span, path, row)
        places = (start, end), _from_units(text, start, end)
        characters, units = (min(own) >= 0 and text[slice(*own)] == said for own in places)
        if characters != units:
            return units
    return None


def _finished(
    examples: list[Row | _Marked], in_units: bool | None, reading: ReadOptions, path: Path
) -> Iterator[Row]:
    labelled = reading.label_column is not None
    for one in examples:
        yield one if isinstance(one, Row) else _of_spans(one, bool(in_units), labelled, path)


def _of_spans(marked: _Marked, in_units: bool, labelled: bool, path: Path) -> Row:
    row, text, spans = marked
    found = sorted(_span(one, text, in_units, path, row) for one in spans)
    for (_, end, kind), (start, _, other) in pairwise(found):
        if start < end:
            what = f"the entities {kind} and {other} overlap at character {start}"
            remedy = "keep one of them: a word has one tag"
            raise InputError(what, remedy, path=path, row=row)
    words = word_spans(text, {at for start, end, _ in found for at in (start, end)})
    tags = [OUTSIDE] * len(words)
    for start, end, kind in found:
        inside = [n for n, (first, last) in enumerate(words) if start <= first and last <= end]
        if not inside:
            what = f"the entity {kind} from {start} to {end} contains no word"
            raise InputError(what, "correct its start and end", path=path, row=row)
        for number in inside:
            tags[number] = f"{'I' if number > inside[0] else 'B'}-{kind}"
    return _row(row, [text[start:end] for start, end in words], tags if labelled else None)


def _span(span: Any, text: str, in_units: bool, path: Path, row: int) -> tuple[int, int, str]:
    """Return the start and the end of an entity, in characters, and its type."""
    first, last, kind, said = _fields(span, path, row)
    start, end = _from_units(text, first, last) if in_units else (first, last)
    if not 0 <= start < end <= len(text) or (said is not None and text[start:end] != said):
        what = f"the entity {kind} from {first} to {last} is not inside the text"
        units = ", and the file counts in UTF-16 units" if in_units else ""
        remedy = f"correct it; the text has {len(text)} characters{units}"
        raise InputError(what, remedy, path=path, row=row)
    return start, end, _checked("-".join(kind.split()), path, row)


def _fields(span: Any, path: Path, row: int) -> tuple[int, int, str, str | None]:
    """Return the start, the end and the type of an entity and, if it is given, its text."""
    start = end = kind = said = None
    if isinstance(span, list) and len(span) == 3:
        start, end, kind = span
    elif isinstance(span, dict):
        start, end = (span.get(f"{name}_offset", span.get(name)) for name in ("start", "end"))
        kind = span.get("labels") or span.get("label", span.get("type"))
        if isinstance(kind, list) and len(kind) == 1:
            [kind] = kind
        said = span.get("text")
    if type(start) is not int or type(end) is not int or not isinstance(kind, str) or not kind:
        what = f"the entity {json.dumps(span)[:80]} has no start, end and label"
        remedy = "write {start, end, label}, with one label"
        raise InputError(what, remedy, path=path, row=row)
    return start, end, kind, said if isinstance(said, str) else None


def _from_units(text: str, start: int, end: int) -> tuple[int, int]:
    """Return places in characters, given those in UTF-16 units; as they are if not in the text."""
    encoded = text.encode("utf-16-le", "surrogatepass")
    if not 0 <= start <= end <= len(encoded) // 2:
        return start, end
    before, until = (encoded[: 2 * at].decode("utf-16-le", "ignore") for at in (start, end))
    return len(before), len(until)
