package timeline

import (
	"encoding/json"
	"net/http"
)

// Handler serves GET /timeline/{namespace}/{pod}: the entries of all pods with that name as a JSON
// list, oldest first; 404 if there are none. GET /timeline/follow?since=TIME is a stream of JSON lines: the stored
// entries of all pods, an empty line, and then each entry when it is recorded. It does not authenticate: the server
// that mounts it must.
func (s *Store) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /timeline/{namespace}/{pod}", s.servePod)
	mux.HandleFunc("GET /timeline/follow", s.serveFollow)
	return mux
}

func (s *Store) servePod(w http.ResponseWriter, r *http.Request) {
	namespace, name := r.PathValue("namespace"), r.PathValue("pod")
	entries, err := s.Pod(r.Context(), namespace, name)
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	case len(entries) == 0:
		http.Error(w, "no entries for pod "+namespace+"/"+name, http.StatusNotFound)
		return
	}
	body, err := json.Marshal(entries)
	if err != nil {
		http.Error(w, "encode timeline: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(body, '\n')) // an error means that the client is gone
}
