package stream

import (
	"fmt"
	"net/http"
	"strings"
)

// Check is one check of /healthz; its name is also the last element of its own path.
type Check struct {
	Name  string
	Check func() error // nil: healthy. It must end soon
}

// healthz responds as the kubelet does: "ok", with ?verbose a line for each check, and 500 with those lines if one
// fails. ?exclude=NAME omits one.
func (s *Server) healthz(w http.ResponseWriter, req *http.Request) {
	out := map[string]bool{}
	for _, names := range req.URL.Query()["exclude"] {
		for name := range strings.SplitSeq(names, ",") {
			out[name] = true
		}
	}
	var text strings.Builder
	failed := false
	for _, c := range s.cfg.Checks {
		if out[c.Name] {
			fmt.Fprintf(&text, "[+]%s excluded: ok\n", c.Name)
			continue
		}
		err := c.Check()
		s.slis.add(c.Name, err)
		if err != nil {
			failed = true
			s.cfg.Logger.Error(err, "The node agent is not healthy", "check", c.Name)
			fmt.Fprintf(&text, "[-]%s failed: reason withheld\n", c.Name)
			continue
		}
		fmt.Fprintf(&text, "[+]%s ok\n", c.Name)
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	switch _, verbose := req.URL.Query()["verbose"]; {
	case failed:
		http.Error(w, text.String()+"healthz check failed", http.StatusInternalServerError)
	case verbose:
		fmt.Fprint(w, text.String()+"healthz check passed\n")
	default:
		fmt.Fprint(w, "ok")
	}
}

// healthzOf responds with the result of one check, with the reason if it fails.
func (s *Server) healthzOf(w http.ResponseWriter, req *http.Request) {
	for _, c := range s.cfg.Checks {
		if c.Name != req.PathValue("check") {
			continue
		}
		if err := c.Check(); err != nil {
			http.Error(w, fmt.Sprintf("internal server error: %v", err), http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, "ok")
		return
	}
	http.NotFound(w, req)
}
