package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"carob/test/bench/standalone"
)

// recorder keeps what a server answers, as it was sent.
type recorder struct {
	next  http.RoundTripper
	plain bool
	into  map[string]answer
}

// RoundTrip implements http.RoundTripper.
func (t recorder) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if !t.plain {
		r.Header.Set("Accept-Encoding", "gzip")
	}
	resp, err := t.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return nil, err
	}
	t.into[key(r)] = answer{resp.Header, body}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	if resp.Header.Get("Content-Encoding") == "gzip" {
		if resp.Body, err = gzip.NewReader(bytes.NewReader(body)); err != nil {
			return nil, err
		}
	}
	return resp, nil
}

func save(file string, recorded map[string]answer) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(gob.NewEncoder(f).Encode(recorded), f.Close())
}

// serveAPI is the API server as a process.
func serveAPI(ctx context.Context, dir string) error {
	_, stop, err := standalone.Start(ctx, dir)
	if err != nil {
		return err
	}
	<-ctx.Done()
	stop()
	return nil
}

// serveRecorded is the server that writes what was recorded.
func serveRecorded(ctx context.Context, dir string) error {
	recorded := map[string]answer{}
	f, err := os.Open(filepath.Join(dir, "recorded"))
	if err != nil {
		return err
	}
	if err := errors.Join(gob.NewDecoder(f).Decode(&recorded), f.Close()); err != nil {
		return err
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			a, ok := recorded[key(r)]
			if !ok {
				http.Error(w, "not recorded: "+key(r), http.StatusNotFound)
				return
			}
			maps.Copy(w.Header(), a.Header)
			_, _ = w.Write(a.Body)
		})}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	pair := filepath.Join(dir, "pki", "apiserver")
	go func() { <-ctx.Done(); _ = server.Close() }()
	if err := os.WriteFile(filepath.Join(dir, "address"), []byte("https://"+l.Addr().String()), 0o600); err != nil {
		return err
	}
	if err := server.ServeTLS(l, pair+".crt", pair+".key"); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// child is a process of this program.
type child struct {
	*exec.Cmd
}

// start starts a server, and waits until the file exists that it creates when it serves.
func start(which, dir, ready string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{exec.Command(self, which, dir)}
	log, err := os.Create(filepath.Join(dir, which+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	c.Stdout, c.Stderr = log, log
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		return nil, err
	}
	for range 600 {
		if info, err := os.Stat(filepath.Join(dir, ready)); err == nil && info.Size() > 0 {
			return c, nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	c.end()
	text, _ := os.ReadFile(log.Name())
	return nil, fmt.Errorf("%s does not serve: %s", which, text)
}

func (c *child) end() {
	_ = c.Process.Kill()
	_ = c.Wait()
}
