// Command openapi writes the OpenAPI documents and the merge schema of the API
// server. tools/cmd/generate runs it after openapi-gen.
package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/emicklei/go-restful/v3"
	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kube-openapi/pkg/builder"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"carob/internal/apiserver"
	"carob/internal/base/pki"
	"carob/internal/kinds/openapi"
	"carob/tools/internal/definitions"
)

func main() {
	documents := flag.String("documents", "", "directory of the OpenAPI documents")
	schema := flag.String("schema", "", "Go file of the merge schema")
	flag.Parse()
	if err := run(*documents, *schema); err != nil {
		fmt.Fprintln(os.Stderr, "openapi:", err)
		os.Exit(1)
	}
}

func run(documents, schemaFile string) error {
	dir, err := os.MkdirTemp("", "carob-openapi-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	keys, err := pki.Open(pki.Config{Dir: filepath.Join(dir, "pki"), NodeName: "generator"}, time.Now())
	if err != nil {
		return err
	}
	server, err := apiserver.New(context.Background(),
		apiserver.Config{DataDir: dir, Listener: listener, PKI: keys, UnsafeNoFsync: true})
	if err != nil {
		return err
	}
	defer server.Close()
	services, types := server.Routes()
	if err := writeSchema(schemaFile, types); err != nil {
		return err
	}
	if err := os.RemoveAll(documents); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(documents, "v3"), 0o755); err != nil {
		return err
	}
	if err := writeV2(documents, services, types); err != nil {
		return err
	}
	return writeV3(documents, services, types)
}

const title, version = "Kubernetes", "1.37"

// The names of the authentication that each operation requires, and of a response that each may have.
const bearer, bearerDoc, unauthorized = "BearerToken", "Bearer Token authentication", "Unauthorized"

func writeV2(dir string, services []*restful.WebService, types *runtime.Scheme) error {
	c := genericapiserver.DefaultOpenAPIConfig(definitions.GetOpenAPIDefinitions,
		openapinamer.NewDefinitionNamer(types))
	c.Info.Title, c.Info.Version = title, version
	c.SecurityDefinitions = &spec.SecurityDefinitions{
		bearer: {SecuritySchemeProps: spec.SecuritySchemeProps{Type: "apiKey", Name: "authorization", In: "header",
			Description: bearerDoc}}}
	c.DefaultSecurity = []map[string][]string{{bearer: {}}}
	c.CommonResponses = map[int]spec.Response{
		http.StatusUnauthorized: {ResponseProps: spec.ResponseProps{Description: unauthorized}}}
	doc, err := builder.BuildOpenAPISpecFromRoutes(restfuladapter.AdaptWebServices(services), c)
	if err != nil {
		return fmt.Errorf("build v2: %w", err)
	}
	doc.Definitions = handler.PruneDefaults(doc.Definitions)
	text, err := doc.MarshalJSON()
	if err != nil {
		return err
	}
	parsed, err := openapi_v2.ParseDocument(text)
	if err != nil {
		return fmt.Errorf("parse v2: %w", err)
	}
	_, err = write(dir, "v2", text, parsed)
	return err
}

func writeV3(dir string, services []*restful.WebService, types *runtime.Scheme) error {
	type entry struct {
		ServerRelativeURL string `json:"serverRelativeURL"`
	}
	index := struct {
		Paths map[string]entry `json:"paths"`
	}{Paths: map[string]entry{}}
	for _, ws := range services {
		name := strings.Trim(ws.RootPath(), "/")
		c := genericapiserver.DefaultOpenAPIV3Config(definitions.GetOpenAPIDefinitions,
			openapinamer.NewDefinitionNamer(types))
		c.Info.Title, c.Info.Version = title, version
		c.SecuritySchemes = spec3.SecuritySchemes{
			bearer: {SecuritySchemeProps: spec3.SecuritySchemeProps{Type: "apiKey", Name: "authorization", In: "header",
				Description: bearerDoc}}}
		c.DefaultSecurity = []map[string][]string{{bearer: {}}}
		c.CommonResponses = map[int]*spec3.Response{
			http.StatusUnauthorized: {ResponseProps: spec3.ResponseProps{Description: unauthorized}}}
		doc, err := builder3.BuildOpenAPISpecFromRoutes(restfuladapter.AdaptWebServices([]*restful.WebService{ws}), c)
		if err != nil {
			return fmt.Errorf("build v3 of %s: %w", name, err)
		}
		narrow(doc, name)
		text, err := json.Marshal(doc)
		if err != nil {
			return err
		}
		parsed, err := openapi_v3.ParseDocument(text)
		if err != nil {
			return fmt.Errorf("parse v3 of %s: %w", name, err)
		}
		hash, err := write(filepath.Join(dir, "v3"), strings.ReplaceAll(name, "/", "_"), text, parsed)
		if err != nil {
			return err
		}
		index.Paths[name] = entry{"/openapi/v3/" + name + "?hash=" + hash}
	}
	text, err := json.Marshal(index)
	if err != nil {
		return err
	}
	_, err = write(dir, "v3", text, nil)
	return err
}

// narrow leaves to the kinds that every group knows only the group of this
// document and the core one.
func narrow(doc *spec3.OpenAPI, name string) {
	const extension = "x-kubernetes-group-version-kind"
	group, version := "", ""
	switch parts := strings.Split(name, "/"); {
	case len(parts) == 2 && parts[0] == "api":
		version = parts[1]
	case len(parts) == 3 && parts[0] == "apis":
		group, version = parts[1], parts[2]
	default:
		return
	}
	if doc.Components == nil {
		return
	}
	for _, s := range doc.Components.Schemas {
		kinds, ok := s.Extensions[extension].([]any)
		if !ok || len(kinds) < 2 {
			continue
		}
		var keep []any
		for _, k := range kinds {
			m, ok := k.(map[string]any)
			if !ok || m["kind"] != "WatchEvent" && m["kind"] != "DeleteOptions" || m["group"] == group &&
				m["version"] == version || m["group"] == "" && m["version"] == "v1" {
				keep = append(keep, k)
			}
		}
		s.Extensions[extension] = keep
	}
}

// write stores a document's forms and returns its hash.
func write(dir, name string, text []byte, parsed proto.Message) (string, error) {
	z, err := compress(text)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, name+".json.gz"), z, 0o644); err != nil {
		return "", err
	}
	if parsed == nil {
		return openapi.Hash(z), nil
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(parsed)
	if err != nil {
		return "", err
	}
	pb, err := compress(b)
	if err != nil {
		return "", err
	}
	return openapi.Hash(z), os.WriteFile(filepath.Join(dir, name+".pb.gz"), pb, 0o644)
}

func compress(b []byte) ([]byte, error) {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(b); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
