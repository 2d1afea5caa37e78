// Package compression compresses long responses of the API server with gzip, by the library's rules but in less than
// half of its time: the library's compressor cannot be replaced, so it does not see that the client accepts gzip.
package compression

import (
	"net/http"
	"slices"
	"strings"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	"k8s.io/klog/v2"
)

const (
	acceptEncoding  = "Accept-Encoding"
	contentEncoding = "Content-Encoding"
	contentLength   = "Content-Length"
	encoding        = "gzip"
)

// Lists compresses the long answers of next to list requests, and passes all other requests on as they are.
func Lists(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !IsList(r) {
			next.ServeHTTP(w, r)
			return
		}
		Serve(w, r, next.ServeHTTP)
	})
}

// IsList reports whether r requests a list, and no watch.
func IsList(r *http.Request) bool {
	info, ok := apirequest.RequestInfoFrom(r.Context())
	return ok && info.IsResourceRequest && info.Verb == "list"
}

// Serve calls next, and compresses a long answer to a GET request whose client accepts gzip. Such a request reaches
// next without Accept-Encoding. Answers with a status other than 200, with an encoding of their own, and those that are
// flushed or hijacked before their first 128 KiB are sent as they are.
func Serve(w http.ResponseWriter, r *http.Request, next func(http.ResponseWriter, *http.Request)) {
	if r.Method != http.MethodGet || !accepts(r.Header) {
		next(w, r)
		return
	}
	plain := new(*r)
	plain.Header = r.Header.Clone()
	plain.Header.Del(acceptEncoding)
	c := &writer{ResponseWriter: w}
	// After a panic, the answer stays incomplete, and its compressor is not used again.
	next(responsewriter.WrapForHTTP1Or2(c), plain)
	if err := c.close(); err != nil {
		klog.FromContext(r.Context()).V(2).Info("An answer was not sent completely", "path", r.URL.Path,
			"err", err.Error())
	}
}

// accepts reports whether a client accepts gzip: like the library, without weights ("gzip;q=0").
func accepts(h http.Header) bool {
	return slices.ContainsFunc(strings.Split(h.Get(acceptEncoding), ","), func(token string) bool {
		return strings.TrimSpace(token) == encoding
	})
}
