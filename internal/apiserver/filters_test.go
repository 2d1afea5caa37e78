package apiserver

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
)

type passedFilter string

// step is a filter that records its name, adds it to the context, and answers if the request says so.
func step(seen *[]string, name string) filter {
	return filter{name, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			*seen = append(*seen, name)
			if r.Header.Get("Answer") == name {
				w.WriteHeader(http.StatusTeapot)
				return
			}
			w.Header().Set(name, "passed")
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), passedFilter(name), true)))
		})
	}}
}

// Filters in two groups pass on their version of the request in order; the first that answers is
// the last one called.
func TestFiltersRunInOrder(t *testing.T) {
	for answer, want := range map[string][]string{
		"":  {"a", "b", "around", "c", "end"},
		"a": {"a"},
		"b": {"a", "b"},
		"c": {"a", "b", "around", "c", "back"},
	} {
		var seen []string
		h := inOrder(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			seen = append(seen, "end")
			for _, name := range []string{"a", "b", "c"} {
				if r.Context().Value(passedFilter(name)) == nil || w.Header().Get(name) == "" {
					t.Errorf("what %s made of the request is lost", name)
				}
			}
			if p := r.Context().Value(passedKey{}).(*passed); p.r != nil || p.w != nil {
				t.Error("an earlier request is kept")
			}
		}), step(&seen, "c"))
		outer := inOrder(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			seen = append(seen, "around")
			h.ServeHTTP(w, r)
			if answer == "c" {
				seen = append(seen, "back")
			}
		}), step(&seen, "a"), step(&seen, "b"))
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Answer", answer)
		w := httptest.NewRecorder()
		inOrder(outer).ServeHTTP(w, r) // without filters, everything is passed on
		if !slices.Equal(seen, want) {
			t.Errorf("answer %q: %v, want %v", answer, seen, want)
		}
		if code := w.Code; (code == http.StatusTeapot) != (answer != "") {
			t.Errorf("answer %q: %d", answer, code)
		}
	}
}
