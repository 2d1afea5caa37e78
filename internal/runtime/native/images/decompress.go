package images

import (
	"bufio"
	"errors"
	"io"

	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/klauspost/compress/zstd"
)

// maxWindow limits the memory that unpacking takes: a window that the archive itself names, twice. It is the limit of
// zstd(1). The library's is four times as large: with a few archives of some kilobytes, an image could take gigabytes.
const maxWindow = 128 << 20

// decompress unpacks an archive or a layer that was compressed as a whole, by its first bytes.
func decompress(r io.Reader) (io.ReadCloser, error) {
	buffered := bufio.NewReaderSize(r, 64<<10)
	head, err := buffered.Peek(10)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if compression.DetectCompression(head) != compression.Zstd {
		return compression.DecompressStream(buffered)
	}
	z, err := zstd.NewReader(buffered, zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, err
	}
	return windowed{z.IOReadCloser()}, nil
}

// windowed names the limit in its error.
type windowed struct{ io.ReadCloser }

func (w windowed) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	if errors.Is(err, zstd.ErrWindowSizeExceeded) {
		err = errors.New("the window of the zstd archive is larger than the " + size(maxWindow) + " that are allowed")
	}
	return n, err
}
