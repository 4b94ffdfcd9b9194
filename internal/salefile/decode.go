package salefile

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"io"

	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"
)

// decode turns a file into UTF-8 without a byte order mark. It takes the file for
// what its first bytes say: gzip by its magic number (RFC 1952, 2.3.1), then UTF-16
// or UTF-8 by a byte order mark; without one it is passed on as it is. A character
// that cannot be converted becomes U+FFFD.
func decode(r io.Reader) (io.Reader, error) {
	raw := bufio.NewReaderSize(r, maxLine)
	start, err := peek(raw, 2)
	if err != nil {
		return nil, err
	}
	if bytes.Equal(start, []byte{0x1f, 0x8b}) {
		unpacked, err := gzip.NewReader(raw)
		if err != nil {
			return nil, err
		}
		raw = bufio.NewReaderSize(&bounded{r: unpacked, left: maxText}, maxLine)
	} else {
		raw = bufio.NewReaderSize(&bounded{r: raw, left: maxText}, maxLine)
	}
	start, err = peek(raw, 3)
	if err != nil {
		return nil, err
	}
	switch {
	case bytes.Equal(start, []byte("\ufeff")):
		_, err = raw.Discard(len(start))
		return raw, err
	case bytes.HasPrefix(start, []byte{0xff, 0xfe}), bytes.HasPrefix(start, []byte{0xfe, 0xff}):
		// The mark decides, and is taken away; the endianness here is for none.
		return transform.NewReader(raw, unicode.UTF16(unicode.LittleEndian, unicode.ExpectBOM).NewDecoder()), nil
	}
	return raw, nil
}

// peek is the first n bytes, or all of a shorter file.
func peek(r *bufio.Reader, n int) ([]byte, error) {
	start, err := r.Peek(n)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return start, err
}

// bounded ends with ErrTooLarge when there are more bytes than that. It does not
// hide how a reader ended, as io.LimitReader does.
type bounded struct {
	r    io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, ErrTooLarge
	}
	return n, err
}
