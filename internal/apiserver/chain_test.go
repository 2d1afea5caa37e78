package apiserver

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// Whoever asks to be somebody else in any way passes the filter that checks it.
func TestNobodyEvadesImpersonation(t *testing.T) {
	for _, name := range []string{"", "Impersonate-User", "impersonate-user", "Impersonate-Group", "Impersonate-Uid", "Impersonate-Extra-scopes", "IMPERSONATE-EXTRA-x"} {
		passed := ""
		h := unless(itself, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { passed = "next" }),
			http.HandlerFunc(func(http.ResponseWriter, *http.Request) { passed = "filter" }))
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		want := "next"
		if name != "" {
			r.Header.Set(name, "v")
			want = "filter"
		}
		h.ServeHTTP(httptest.NewRecorder(), r)
		if passed != want {
			t.Errorf("%q passed %s, want %s", name, passed, want)
		}
	}
}
