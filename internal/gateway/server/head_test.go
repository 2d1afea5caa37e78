package server

import (
	"bufio"
	"bytes"
	"net/http"
	"reflect"
	"testing"
)

// FuzzParse compares with net/http: a request that is accepted means the same there.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "POST /a?b HTTP/1.1\r\nhost: x:80\r\nContent-Length: 12\r\n\r\n",
		"GET //a HTTP/1.1\r\nHost: [::1]\r\nX-a: 1\r\nx-A: 2\r\nConnection: close\r\n\r\n",
		"HEAD /%20 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", "\r\n\r\n", "GET / HTTP/1.1\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n", "GET / HTTP/1.1\nHost: x\r\n\r\n",
		"GET / HTTP/1.1\r\nHost:\n0\r\n\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		end := headEnd(b, 0)
		if i := bytes.Index(b, []byte("\r\n\r\n")); (i < 0) != (end == 0) || i >= 0 && end != i+4 {
			t.Fatalf("the head ends at %d, not %d", end, i+4)
		}
		if end == 0 {
			return
		}
		got, ok := parse(t.Context(), b[:end])
		if !ok {
			return
		}
		want, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(b)))
		if err != nil {
			t.Fatalf("net/http: %v", err)
		}
		if close := want.Header.Get("Connection"); close == "close" {
			want.Close = true
		}
		delete(want.Header, "Host")
		if got.Method != want.Method || got.RequestURI != want.RequestURI || got.Host != want.Host ||
			got.ContentLength != want.ContentLength || got.Proto != want.Proto || got.Close != want.Close ||
			*got.URL != *want.URL || !reflect.DeepEqual(got.Header, want.Header) || want.TransferEncoding != nil {
			t.Fatalf("%+v, not %+v", got, want)
		}
	})
}
