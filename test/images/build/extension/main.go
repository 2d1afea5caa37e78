// extension is a server that extends an API server from inside of a pod:
// admission webhooks (/mutate, /validate), a conversion webhook (/convert) and
// an API group of its own (/apis/far.example.org/v1), which only the front proxy
// may ask, on behalf of the users it names. It serves TLS with the files in
// FOLDER: tls.crt, tls.key and, of the front proxy's authority, proxy.crt.
//
//	extension FOLDER
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: extension FOLDER")
		os.Exit(2)
	}
	if err := serve(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "extension:", err)
		os.Exit(1)
	}
}

func serve(folder string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	proxy, err := os.ReadFile(filepath.Join(folder, "proxy.crt"))
	if err != nil {
		return err
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(proxy) {
		return errors.New("proxy.crt holds no certificate")
	}
	s := &http.Server{Addr: ":8443", Handler: routes(),
		TLSConfig: &tls.Config{ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: authorities,
			MinVersion: tls.VersionTLS12}}
	go func() {
		<-ctx.Done()
		_ = s.Close()
	}()
	err = s.ListenAndServeTLS(filepath.Join(folder, "tls.crt"), filepath.Join(folder, "tls.key"))
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

type object = map[string]any

func routes() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	m.HandleFunc("POST /mutate", review(mutate))
	m.HandleFunc("POST /validate", review(validate))
	m.HandleFunc("POST /convert", review(convert))
	n := &notes{of: map[string]object{}}
	m.HandleFunc("GET /apis/far.example.org/v1", proxied(n.discover))
	m.HandleFunc("GET /apis/far.example.org/v1/namespaces/{namespace}/notes", proxied(n.list))
	m.HandleFunc("POST /apis/far.example.org/v1/namespaces/{namespace}/notes", proxied(n.create))
	m.HandleFunc("GET /apis/far.example.org/v1/namespaces/{namespace}/notes/{name}", proxied(n.get))
	m.HandleFunc("DELETE /apis/far.example.org/v1/namespaces/{namespace}/notes/{name}", proxied(n.remove))
	return m
}

// review answers reviews of admission and of conversion, which have one form.
func review(answer func(request object) object) http.HandlerFunc {
	return func(w http.ResponseWriter, q *http.Request) {
		var body object
		if err := json.NewDecoder(q.Body).Decode(&body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		request, _ := body["request"].(object)
		response := answer(request)
		response["uid"] = request["uid"]
		reply(w, http.StatusOK, object{"apiVersion": body["apiVersion"], "kind": body["kind"], "response": response})
	}
}

func reply(w http.ResponseWriter, code int, body object) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}

func at(o object, path ...string) any {
	var v any = o
	for _, p := range path {
		m, _ := v.(object)
		v = m[p]
	}
	return v
}

// mutate labels everything, and gives pods another container, with as little said
// about it as can be.
func mutate(request object) object {
	labels, _ := at(request, "object", "metadata", "labels").(object)
	patch := []object{}
	if labels == nil {
		patch = append(patch, object{"op": "add", "path": "/metadata/labels", "value": object{}})
	}
	patch = append(patch, object{"op": "add", "path": "/metadata/labels/seen-by", "value": "extension"})
	if at(request, "kind", "kind") == "Pod" {
		patch = append(patch, object{"op": "add", "path": "/spec/containers/-",
			"value": object{"name": "added", "image": "registry.k8s.io/pause:3.10.2"}})
	}
	b, err := json.Marshal(patch)
	if err != nil {
		return denied(err.Error())
	}
	return object{"allowed": true, "patchType": "JSONPatch", "patch": b, "warnings": []string{"the extension was here"}}
}

func denied(why string) object {
	return object{"allowed": false, "status": object{"message": why, "code": http.StatusForbidden}}
}

// validate denies attaching, what bears a label that asks for it, and changes of
// custom objects that are locked.
func validate(request object) object {
	switch {
	case request["operation"] == "CONNECT":
		return denied("nobody attaches to " + fmt.Sprint(request["name"]))
	case at(request, "object", "metadata", "labels", "refuse") == "yes":
		return denied("the label says so")
	case at(request, "oldObject", "metadata", "labels", "locked") == "yes":
		return denied("it is locked")
	}
	return object{"allowed": true}
}

// convert knows endpoints: v1 has host and port, v2 both in one address.
func convert(request object) object {
	wanted := fmt.Sprint(request["desiredAPIVersion"])
	given, _ := request["objects"].([]any)
	converted := []any{}
	for _, g := range given {
		o, _ := g.(object)
		spec, _ := o["spec"].(object)
		from := fmt.Sprint(o["apiVersion"])
		switch {
		case strings.HasSuffix(wanted, "/v2") && strings.HasSuffix(from, "/v1"):
			o["spec"] = object{"address": fmt.Sprintf("%v:%v", spec["host"], spec["port"])}
		case strings.HasSuffix(wanted, "/v1") && strings.HasSuffix(from, "/v2"):
			host, port, _ := strings.Cut(fmt.Sprint(spec["address"]), ":")
			o["spec"] = object{"host": host, "port": port}
		default:
			return object{"result": object{"status": "Failure", "message": "no way from " + from + " to " + wanted},
				"convertedObjects": []any{}}
		}
		o["apiVersion"] = wanted
		converted = append(converted, o)
	}
	return object{"result": object{"status": "Success"}, "convertedObjects": converted}
}

// proxied lets in who comes by way of the front proxy.
func proxied(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, q *http.Request) {
		if len(q.TLS.VerifiedChains) == 0 || q.Header.Get("X-Remote-User") == "" {
			reply(w, http.StatusUnauthorized,
				status("Unauthorized", "not by way of the front proxy", http.StatusUnauthorized))
			return
		}
		h(w, q)
	}
}

func status(reason, message string, code int) object {
	return object{"apiVersion": "v1", "kind": "Status", "metadata": object{}, "status": "Failure", "reason": reason,
		"message": message, "code": code}
}

// notes is the kind of the group: what somebody wrote, kept in memory.
type notes struct {
	mu sync.Mutex
	of map[string]object // by namespace/name
}

func (n *notes) discover(w http.ResponseWriter, _ *http.Request) {
	reply(w, http.StatusOK, object{"apiVersion": "v1", "kind": "APIResourceList", "groupVersion": "far.example.org/v1",
		"resources": []object{
			{"name": "notes", "singularName": "note", "kind": "Note", "namespaced": true, "shortNames": []string{"nt"},
				"verbs": []string{"create", "delete", "get", "list"}}}})
}

func (n *notes) list(w http.ResponseWriter, q *http.Request) {
	n.mu.Lock()
	defer n.mu.Unlock()
	items := []object{}
	for key, o := range n.of {
		if strings.HasPrefix(key, q.PathValue("namespace")+"/") {
			items = append(items, o)
		}
	}
	reply(w, http.StatusOK, object{"apiVersion": "far.example.org/v1", "kind": "NoteList",
		"metadata": object{"resourceVersion": "1"}, "items": items})
}

func (n *notes) create(w http.ResponseWriter, q *http.Request) {
	var o object
	if err := json.NewDecoder(q.Body).Decode(&o); err != nil {
		reply(w, http.StatusBadRequest, status("BadRequest", err.Error(), http.StatusBadRequest))
		return
	}
	name := fmt.Sprint(at(o, "metadata", "name"))
	o["metadata"] = object{"name": name, "namespace": q.PathValue("namespace")}
	o["author"] = q.Header.Get("X-Remote-User")
	n.mu.Lock()
	n.of[q.PathValue("namespace")+"/"+name] = o
	n.mu.Unlock()
	reply(w, http.StatusCreated, o)
}

func (n *notes) get(w http.ResponseWriter, q *http.Request) {
	n.mu.Lock()
	o := n.of[q.PathValue("namespace")+"/"+q.PathValue("name")]
	n.mu.Unlock()
	if o == nil {
		reply(w, http.StatusNotFound,
			status("NotFound", fmt.Sprintf("notes.far.example.org %q not found", q.PathValue("name")),
				http.StatusNotFound))
		return
	}
	reply(w, http.StatusOK, o)
}

func (n *notes) remove(w http.ResponseWriter, q *http.Request) {
	n.mu.Lock()
	delete(n.of, q.PathValue("namespace")+"/"+q.PathValue("name"))
	n.mu.Unlock()
	reply(w, http.StatusOK, object{"apiVersion": "v1", "kind": "Status", "metadata": object{}, "status": "Success"})
}
