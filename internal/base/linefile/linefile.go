// Package linefile opens files to which lines are appended, such as logs of JSON objects. The access log of the gateway
// and the audit log use it. It must never write to a file itself.
package linefile

import (
	"os"
)

// Open opens a file for appending, and creates it if there is none. half reports that it does not end with a whole
// line: the disk was full, or the process that wrote it was killed. The next line then has to begin with a newline.
func Open(path string, mode os.FileMode) (f *os.File, half bool, err error) {
	if f, err = os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, mode); err != nil {
		return nil, false, err
	}
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() || st.Size() == 0 {
		return f, false, nil
	}
	reader, err := os.Open(path)
	if err != nil {
		return f, false, nil // it need not be readable
	}
	defer reader.Close()
	last := make([]byte, 1)
	_, err = reader.ReadAt(last, st.Size()-1)
	return f, err == nil && last[0] != '\n', nil
}
