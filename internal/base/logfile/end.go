package logfile

import (
	"io"
	"os"
	"strings"
)

// End returns the end of a file, at most so many bytes, starting at the beginning of a line.
func End(name string, most int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	from := max(st.Size()-most, 0)
	text, err := io.ReadAll(io.NewSectionReader(f, from, most))
	if from > 0 {
		_, rest, _ := strings.Cut(string(text), "\n")
		text = []byte(rest)
	}
	return text, err
}
