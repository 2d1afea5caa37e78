package gateway

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// A client of HTTP/2 that answers pings, but takes nothing of an answer, or sends nothing of a body, ends its request;
// another request on the same connection is served.
func TestSlowStreams(t *testing.T) {
	for what, c := range map[string]struct {
		path   string
		body   bool   // a body is announced and does not come
		window uint32 // what the client takes of a stream
	}{
		"an answer that is not taken":   {"/large", false, 1000},
		"the last bytes of an answer":   {"/few", false, 0},
		"an answer that is taken later": {"/later", false, 0},
		"a body that stops":             {"/upload", true, 65535},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				front, stop := slowLab(t, func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body)
					switch r.URL.Path {
					case "/few":
						_, _ = w.Write(make([]byte, 100))
					case "/later":
						time.Sleep(10 * slowClient) // a stream may rest
						_, _ = w.Write(make([]byte, 10000))
					}
					for r.URL.Path == "/large" {
						if _, err := w.Write(make([]byte, 4096)); err != nil {
							return
						}
					}
				})
				conn := front.dial()
				ended := map[uint32]chan time.Time{1: make(chan time.Time, 1), 3: make(chan time.Time, 1)}
				go readStreams(conn, ended)
				began := time.Now()
				write := http2.NewFramer(conn, nil)
				_, _ = io.WriteString(conn, http2.ClientPreface)
				_ = write.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: c.window})
				_ = write.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: blockOf(c.path, c.body),
					EndStream: !c.body, EndHeaders: true})
				time.Sleep(slowClient / 2)
				_ = write.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: blockOf("/small", false),
					EndStream: true, EndHeaders: true})
				if took := (<-ended[3]).Sub(began); took > slowClient/2+time.Second {
					t.Errorf("another request ended after %v", took)
				}
				select {
				case at := <-ended[1]:
					took := at.Sub(began)
					if c.path == "/later" {
						took -= 10 * slowClient
					}
					if took < slowClient-time.Second || took > slowClient+headerTime {
						t.Errorf("ended after %v", took)
					}
				case <-time.After(20 * slowClient):
					t.Error("the request has not ended")
				}
				_ = conn.Close()
				synctest.Wait()
				stop()
			})
		})
	}
}

// readStreams reads frames, answers pings, and notes when streams end.
func readStreams(conn net.Conn, ended map[uint32]chan time.Time) {
	f := http2.NewFramer(conn, conn)
	answers := make(chan [8]byte, 100)
	go func() {
		for data := range answers {
			_ = f.WritePing(true, data)
		}
	}()
	defer close(answers)
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return
		}
		over := false
		switch frame := frame.(type) {
		case *http2.PingFrame:
			if !frame.IsAck() {
				answers <- frame.Data
			}
		case *http2.RSTStreamFrame:
			over = true
		case *http2.HeadersFrame:
			over = frame.StreamEnded()
		case *http2.DataFrame:
			over = frame.StreamEnded()
		}
		if c := ended[frame.Header().StreamID]; over && c != nil {
			select {
			case c <- time.Now():
			default:
			}
		}
	}
}

func blockOf(path string, body bool) []byte {
	var out bytes.Buffer
	enc := hpack.NewEncoder(&out)
	method := http.MethodGet
	if body {
		method = http.MethodPut
	}
	for _, f := range [][2]string{{":method", method}, {":scheme", "http"}, {":authority", "a"}, {":path", path}, {"content-length", "1000"}} {
		if f[0] == "content-length" && !body {
			break
		}
		_ = enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	return out.Bytes()
}
