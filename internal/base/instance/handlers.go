package instance

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// RuntimeHandler is a RuntimeClass handler that another container runtime serves.
type RuntimeHandler struct {
	Name     string // as RuntimeClasses name it
	Endpoint string // unix:///path
	Handler  string // as that runtime names it; empty: its default
}

// OwnHandler is the handler that RuntimeClasses may name for carob's own runtime.
const OwnHandler = "carob"

// longestSocket is the length of the longest path of a unix socket (unix(7)).
const longestSocket = 107

var (
	handlerPattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	remotePattern  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`)
)

// parseHandler reads NAME=unix:///path/to/cri.sock[#HANDLER].
func parseHandler(s string) (RuntimeHandler, error) {
	name, endpoint, ok := strings.Cut(s, "=")
	if !ok {
		return RuntimeHandler{}, fmt.Errorf("%q is not NAME=unix:///path/to/cri.sock", s)
	}
	h := RuntimeHandler{Name: name}
	if !handlerPattern.MatchString(name) {
		return RuntimeHandler{}, fmt.Errorf(
			"%q is not the handler of a RuntimeClass (at most 63 lower case letters, digits, and '-')", name)
	}
	endpoint, h.Handler, ok = strings.Cut(endpoint, "#")
	if ok && !remotePattern.MatchString(h.Handler) {
		return RuntimeHandler{}, fmt.Errorf("%q, after '#', is not the name of a runtime in the other runtime's configuration",
			h.Handler)
	}
	file, _ := strings.CutPrefix(endpoint, "unix://")
	if !strings.HasPrefix(file, "/") || strings.ContainsAny(file, "\x00\n%?") || len(file) > longestSocket {
		return RuntimeHandler{}, fmt.Errorf("%q is not a socket, such as unix:///run/containerd/containerd.sock", endpoint)
	}
	h.Endpoint = "unix://" + path.Clean(file)
	return h, nil
}

// deriveHandlers reads RuntimeHandlers.
func (in *Instance) deriveHandlers() error {
	in.Handlers = nil
	for _, s := range in.RuntimeHandlers {
		h, err := parseHandler(s)
		switch {
		case err != nil:
		case h.Name == OwnHandler && in.RuntimeEndpoint == "":
			err = fmt.Errorf("the handler %q is that of carob's own runtime: choose another name", OwnHandler)
		case h.Endpoint == "unix://"+in.SocketCRI:
			err = fmt.Errorf("%s is the socket of this carob", h.Endpoint)
		case slices.ContainsFunc(in.Handlers, func(o RuntimeHandler) bool { return o.Name == h.Name }):
			err = fmt.Errorf("the handler %q is given twice", h.Name)
		}
		if err != nil {
			return fmt.Errorf("%w --runtime-handler: %w", ErrFlag, err)
		}
		in.Handlers = append(in.Handlers, h)
	}
	return nil
}

// lessHandlers rejects the removal of a socket that has pods, also by another value.
func lessHandlers(old, now Flags, f Facts) (reason, way string) {
	sockets := map[string]bool{}
	for _, s := range now.RuntimeHandlers {
		if h, err := parseHandler(s); err == nil {
			sockets[h.Endpoint] = true
		}
	}
	for _, s := range old.RuntimeHandlers {
		h, err := parseHandler(s)
		if err != nil || sockets[h.Endpoint] || f.PodsAt[h.Endpoint] == 0 {
			continue
		}
		return fmt.Sprintf("it was %s and no handler names this socket now, but %d of the node's pods may run there: "+
				"no runtime would manage them", s, f.PodsAt[h.Endpoint]),
			"delete these pods first, or " + endPods + ", or use the previous value"
	}
	return "", ""
}
