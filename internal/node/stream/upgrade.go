package stream

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/proxy"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/streaming/pkg/httpstream"

	"carob/internal/base/streamguard"
)

// exec runs a command in a container: the runtime opens a stream, to which the upgraded connection is passed on, with
// any protocol.
func (s *Server) exec(w http.ResponseWriter, req *http.Request) {
	id := s.runningContainer(w, req)
	if id == "" {
		return
	}
	o, err := parseStreams(req.URL.Query())
	if err == nil && len(o.command) == 0 {
		err = errors.New("you must specify at least 1 command for the container")
	}
	if err = upgraded(req, err); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	res, err := s.cfg.Runtime.Exec(req.Context(), &cri.ExecRequest{
		ContainerId: id, Cmd: o.command, Tty: o.tty, Stdin: o.stdin, Stdout: o.stdout, Stderr: o.stderr,
	})
	s.passOn(w, req, res.GetUrl(), err)
}

// upgraded refuses requests that can't become a stream, in addition to other errors. They never reach the runtime: a
// plain GET, which any link can trigger, does nothing.
func upgraded(req *http.Request, err error) error {
	if err == nil && !httpstream.IsUpgradeRequest(req) {
		return errors.New("upgrade request required")
	}
	return err
}

// portForward passes connections to ports of the pod.
func (s *Server) portForward(w http.ResponseWriter, req *http.Request) {
	pod := s.find(w, req)
	if pod == nil {
		return
	}
	ports, err := parsePorts(req.URL.Query())
	if err = upgraded(req, err); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	id := s.cfg.Pods.SandboxID(pod.UID)
	if id == "" {
		http.Error(w, fmt.Sprintf("not found (%q)", pod.Namespace+"/"+pod.Name), http.StatusInternalServerError)
		return
	}
	res, err := s.cfg.Runtime.PortForward(req.Context(), &cri.PortForwardRequest{PodSandboxId: id, Port: ports})
	s.passOn(w, req, res.GetUrl(), err)
}

// runningContainer returns the ID of the container of the request, or empty after it has written the error.
func (s *Server) runningContainer(w http.ResponseWriter, req *http.Request) string {
	pod := s.find(w, req)
	if pod == nil {
		return ""
	}
	name := req.PathValue("container")
	id := s.cfg.Pods.ContainerID(pod.UID, name)
	if id == "" {
		http.Error(w, fmt.Sprintf("container not found (%q)", name), http.StatusInternalServerError)
	}
	return id
}

// passOn connects the client with the streaming server of the runtime. Redirects are never followed: only the runtime
// determines the target.
func (s *Server) passOn(w http.ResponseWriter, req *http.Request, location string, err error) {
	if err != nil {
		http.Error(w, status.Convert(err).Message(), httpCode(err))
		return
	}
	target, err := url.Parse(location)
	if err != nil || target.Host == "" {
		http.Error(w, fmt.Sprintf("the container runtime answered the invalid streaming URL %q", location),
			http.StatusInternalServerError)
		return
	}
	h := proxy.NewUpgradeAwareHandler(target, nil, false, true, responder{s})
	h.RejectForwardingRedirects = true
	h.ServeHTTP(streamguard.Lingering{ResponseWriter: w}, req)
}

// responder writes the error if a connection could not be passed on.
type responder struct{ s *Server }

func (r responder) Error(w http.ResponseWriter, req *http.Request, err error) {
	r.s.cfg.Logger.V(2).Info("Passing on a stream failed", "path", req.URL.Path, "err", err)
	http.Error(w, err.Error(), http.StatusInternalServerError)
}

func httpCode(err error) int {
	switch status.Code(err) {
	case codes.NotFound:
		return http.StatusNotFound
	case codes.InvalidArgument:
		return http.StatusBadRequest
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	case codes.Unavailable:
		return http.StatusServiceUnavailable
	}
	if errors.Is(err, context.Canceled) {
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

type streamOptions struct {
	command                    []string
	stdin, stdout, stderr, tty bool
}

func parseStreams(v url.Values) (streamOptions, error) {
	on := func(name string) bool { return v.Get(name) == "1" || v.Get(name) == "true" }
	o := streamOptions{
		command: v["command"],
		stdin:   on(corev1.ExecStdinParam),
		stdout:  on(corev1.ExecStdoutParam),
		stderr:  on(corev1.ExecStderrParam),
		tty:     on(corev1.ExecTTYParam),
	}
	if o.tty {
		o.stderr = false // a terminal has one output
	}
	if !o.stdin && !o.stdout && !o.stderr {
		return o, errors.New("you must specify at least 1 of stdin, stdout, stderr")
	}
	return o, nil
}

// mostPorts is how many ports a websocket client may name: the number of a channel is a byte, and a port has two.
const mostPorts = 128

// parsePorts reads the ports, which only websocket clients name here.
func parsePorts(v url.Values) ([]int32, error) {
	var ports []int32
	for _, list := range v[corev1.PortHeader] {
		for text := range strings.SplitSeq(list, ",") {
			n, err := strconv.ParseUint(text, 10, 16)
			if err != nil || n == 0 {
				return nil, fmt.Errorf("unable to parse %q as a port", text)
			}
			if len(ports) == mostPorts {
				return nil, fmt.Errorf("at most %d ports can be forwarded in one connection", mostPorts)
			}
			ports = append(ports, int32(n))
		}
	}
	return ports, nil
}
