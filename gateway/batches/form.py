"""Reads a form with one file as it comes: no more of the file than a piece is in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from urllib.parse import unquote

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from gateway.errors import InvalidRequestError, UnsupportedMediaType, quoted
from gateway.transport.body_shape import cut

MAX_FIELDS = 16
MAX_FIELD_BYTES = 1024
MAX_FILENAME = 255


class Form:
    """The fields and the file of ``multipart/form-data``. ``pieces`` gives the file; the fields may
    come before and after it, so they are known when it has ended."""

    def __init__(self, request: Request) -> None:
        """Raises ``UnsupportedMediaType``."""
        kind, options = parse_options_header(request.headers.get("content-type", ""))
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise UnsupportedMediaType("Send a form: content-type multipart/form-data; boundary=….")
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        """That of the file; None before it has begun."""
        self._request = request
        self._file = bytearray()
        self._headers: dict[bytes, bytes] = {}
        self._header, self._value = b"", b""
        self._name = ""
        self._field: bytearray | None = None
        """The value of the field that is being read; None in the file."""
        self._has_ended = False
        self.is_whole = False
        """Whether all of the body was read."""
        try:
            self._parser = MultipartParser(
                options[b"boundary"],
                {
                    "on_part_begin": self._headers.clear,
                    "on_header_field": self._on_header_field,
                    "on_header_value": self._on_header_value,
                    "on_header_end": self._on_header_end,
                    "on_headers_finished": self._on_headers_finished,
                    "on_part_data": self._on_part_data,
                    "on_part_end": self._on_part_end,
                    "on_end": self._on_end,
                },
            )
        except FormParserError as error:
            raise UnsupportedMediaType(f"The form's boundary is wrong: {error}") from None

    async def pieces(self, size: int) -> AsyncIterator[bytes]:
        """The file in pieces of ``size`` bytes, the last of which is shorter. Raises
        ``InvalidRequestError``, and ``ClientDisconnect`` if the client leaves."""
        async for received in self._request.stream():
            for part in cut(received):
                try:
                    self._parser.write(part)
                except FormParserError as error:
                    raise InvalidRequestError(
                        f"The body is not the form that its header says: {error}",
                        code="invalid_form",
                    ) from None
                while len(self._file) >= size:
                    piece, self._file = bytes(self._file[:size]), self._file[size:]
                    yield piece
        self.is_whole = True
        if not self._has_ended:
            raise InvalidRequestError(
                "The form ends before its last boundary.", code="invalid_form"
            )
        if self.filename is None:
            raise InvalidRequestError("The form has no file.", param="file")
        if self._file:
            yield bytes(self._file)

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        self._headers[self._header.lower()] = self._value
        self._header = self._value = b""

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        self._name = _text(options.get(b"name", b""))
        filename = _filename(options)
        if filename is None and self._name != "file":
            if len(self.fields) >= MAX_FIELDS:
                raise InvalidRequestError(f"At most {MAX_FIELDS} fields.", code="invalid_form")
            self._field = bytearray()
            return
        if self._name != "file":
            raise InvalidRequestError(f"The file's field is file, not {quoted(self._name)}.")
        if self.filename is not None:
            raise InvalidRequestError("Send one file at a time.", param="file")
        self.filename, self._field = filename or "file", None

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._field is None:
            self._file += data[start:end]
            return
        self._field += data[start:end]
        if len(self._field) > MAX_FIELD_BYTES:
            raise InvalidRequestError(f"At most {MAX_FIELD_BYTES} bytes.", param=self._name)

    def _on_part_end(self) -> None:
        if self._field is not None:
            if self._name in self.fields:
                raise InvalidRequestError("Send it once.", param=self._name)
            self.fields[self._name] = _text(bytes(self._field))

    def _on_end(self) -> None:
        self._has_ended = True


def _filename(options: Mapping[bytes, bytes]) -> str | None:
    """The last part of the file's name. RFC 5987's form goes before the plain one."""
    if (named := options.get(b"filename*")) is not None:
        text = unquote(_text(named).rpartition("'")[2])
    elif (named := options.get(b"filename")) is not None:
        text = _text(named)
    else:
        return None
    return text.replace("\\", "/").rpartition("/")[2][:MAX_FILENAME]


def _text(data: bytes) -> str:
    return data.decode(errors="replace").replace("\0", "")
