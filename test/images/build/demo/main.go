// demo is the program in the image carob.local/demo:1: a small web server that
// prints every stage of its own life, so that `kubectl logs` tells the story of
// a pod. "demo prepare" is for an init container, "demo serve" for the
// container, "demo hook NAME" for its postStart and preStop hooks.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
)

const usage = "usage: demo prepare [FILE] | demo serve [ADDRESS] | demo hook NAME"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		args = []string{"serve"}
	}
	arg := func(otherwise string) string {
		if len(args) > 1 {
			return args[1]
		}
		return otherwise
	}
	switch args[0] {
	case "prepare":
		return prepare(arg(""))
	case "serve":
		return serve(arg(":8080"))
	case "hook":
		return hook(arg("unnamed"))
	}
	return errors.New(usage)
}

// logf prints one line with the wall-clock time, as a log reader expects it.
func logf(format string, args ...any) {
	fmt.Printf("%s  %s\n", time.Now().UTC().Format("15:04:05.000"), fmt.Sprintf(format, args...))
}

func me() string {
	host, _ := os.Hostname()
	if ns := os.Getenv("POD_NAMESPACE"); ns != "" {
		return ns + "/" + host
	}
	return host
}

// prepare leaves a greeting in a volume that the init container shares with the server.
func prepare(file string) error {
	logf("init: preparing %s", me())
	if file == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, fmt.Appendf(nil, "prepared by the init container of %s\n", me()), 0o644)
}

func serve(addr string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	started := time.Now()
	logf("start: %s as pid %d, uid %d", me(), os.Getpid(), os.Getuid())

	var served atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		n := served.Add(1)
		logf("request %d from %s", n, r.RemoteAddr)
		fmt.Fprintf(w, "Hello from %s: request %d, %s after the start.\n", me(), n,
			time.Since(started).Round(time.Millisecond))
		if file := os.Getenv("GREETING"); file != "" {
			if body, err := os.ReadFile(file); err == nil {
				_, _ = w.Write(body)
			}
		}
	})
	var probed [2]atomic.Bool
	for i, name := range []string{"livez", "readyz"} {
		mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, _ *http.Request) {
			if !probed[i].Swap(true) {
				logf("probe: first /%s, %s after the start", name, time.Since(started).Round(time.Millisecond))
			}
			fmt.Fprintln(w, "ok")
		})
	}
	mux.HandleFunc("GET /exit/{code}", func(w http.ResponseWriter, r *http.Request) {
		code, err := strconv.Atoi(r.PathValue("code"))
		if err != nil || code < 0 || code > 255 {
			http.Error(w, "an exit code is a number from 0 to 255", http.StatusBadRequest)
			return
		}
		logf("exit: asked to end with code %d", code)
		os.Exit(code)
	})

	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	logf("ready: listening on %s", l.Addr())
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(l) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	logf("stop: got a signal, finishing open requests")
	finish, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := srv.Shutdown(finish); err != nil {
		return err
	}
	logf("end: served %d requests in %s", served.Load(), time.Since(started).Round(time.Millisecond))
	return nil
}

// hook writes into the log of the container's main process: what a hook prints
// itself is kept nowhere.
func hook(name string) error {
	log, err := os.OpenFile("/proc/1/fd/1", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	os.Stdout = log
	logf("hook: %s", name)
	return log.Close()
}
