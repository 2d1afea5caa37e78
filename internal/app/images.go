package app

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/distribution/reference"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/base/imageapi"
	"carob/internal/runtime"
)

// imageStore is the part of the native image store that CRI does not have.
type imageStore interface {
	// Import reads an archive and returns the names in it.
	Import(ctx context.Context, archive io.Reader, progress func(string)) ([]string, error)
	// Pull pulls an image and returns its ID.
	Pull(ctx context.Context, name string, progress func(string)) (string, error)
	// Tag adds a name to an image and returns the complete form of that name.
	Tag(ctx context.Context, ref, name string) (string, error)
	// Untag removes one name of an image; false: the image has no other name, or the name is not one.
	Untag(ctx context.Context, name string) (bool, error)
}

// imageHandler serves imageapi for a runtime; store is nil unless it is carob's own runtime.
func imageHandler(images runtime.Images, store imageStore) http.Handler {
	h := &imageServer{images, store}
	mux := http.NewServeMux()
	base := "/" + imageapi.Path
	mux.HandleFunc("GET "+base, h.list)
	mux.HandleFunc("POST "+base+"/import", h.importArchive)
	mux.HandleFunc("POST "+base+"/pull", h.pull)
	mux.HandleFunc("POST "+base+"/tag", h.tag)
	mux.HandleFunc("DELETE "+base, h.remove)
	return mux
}

// notifyChanges calls changed after each request that may have changed the images.
func notifyChanges(images http.Handler, changed func()) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		images.ServeHTTP(w, r)
		if r.Method != http.MethodGet {
			changed()
		}
	})
}

type imageServer struct {
	images runtime.Images
	store  imageStore
}

func (h *imageServer) list(w http.ResponseWriter, r *http.Request) {
	res, err := h.images.ListImages(r.Context(), &cri.ListImagesRequest{})
	if err != nil {
		refuse(w, err)
		return
	}
	list := imageapi.List{Images: []imageapi.Image{}}
	for _, im := range res.Images {
		list.Images = append(list.Images,
			imageapi.Image{ID: im.Id, Tags: im.RepoTags, Digests: im.RepoDigests, Size: im.Size, Pinned: im.Pinned})
	}
	slices.SortFunc(list.Images, func(a, b imageapi.Image) int {
		return strings.Compare(strings.Join(a.Tags, " ")+a.ID, strings.Join(b.Tags, " ")+b.ID)
	})
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(list) // fails only if the client is gone
}

func (h *imageServer) importArchive(w http.ResponseWriter, r *http.Request) {
	if h.store == nil {
		refuse(w, status.Error(codes.Unimplemented,
			"this node uses another container runtime: import the image there, for example with `ctr -n k8s.io images import`"))
		return
	}
	out := progressStream(w)
	names, err := h.store.Import(r.Context(), r.Body, out.message)
	out.end(names, err)
}

func (h *imageServer) pull(w http.ResponseWriter, r *http.Request) {
	ref := r.URL.Query().Get("ref")
	if ref == "" {
		refuse(w, status.Error(codes.InvalidArgument, "no image name: use ?ref=NAME"))
		return
	}
	out := progressStream(w)
	var err error
	if h.store != nil {
		_, err = h.store.Pull(r.Context(), ref, out.message)
	} else {
		_, err = h.images.PullImage(r.Context(), &cri.PullImageRequest{Image: &cri.ImageSpec{Image: ref}})
	}
	if err != nil {
		out.end(nil, err)
		return
	}
	out.end([]string{fullName(ref)}, nil)
}

// fullName is the requested name in the form that registries and lists use: nginx is
// docker.io/library/nginx:latest.
func fullName(ref string) string {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return ref
	}
	return named.String()
}

func (h *imageServer) tag(w http.ResponseWriter, r *http.Request) {
	if h.store == nil {
		refuse(w, status.Error(codes.Unimplemented,
			"this node uses another container runtime: tag the image there, for example with `ctr -n k8s.io images tag`"))
		return
	}
	name, err := h.store.Tag(r.Context(), r.URL.Query().Get("ref"), r.URL.Query().Get("name"))
	if err != nil {
		refuse(w, err)
		return
	}
	progressStream(w).end([]string{name}, nil)
}

func (h *imageServer) remove(w http.ResponseWriter, r *http.Request) {
	spec := &cri.ImageSpec{Image: r.URL.Query().Get("ref")}
	if h.store != nil { // CRI removes an image with all its names
		if done, err := h.store.Untag(r.Context(), spec.Image); err != nil {
			refuse(w, err)
			return
		} else if done {
			w.WriteHeader(http.StatusOK)
			return
		}
	}
	st, err := h.images.ImageStatus(r.Context(), &cri.ImageStatusRequest{Image: spec})
	if err == nil && st.Image == nil {
		err = status.Errorf(codes.NotFound, "there is no image %s", spec.Image)
	}
	if err == nil {
		_, err = h.images.RemoveImage(r.Context(), &cri.RemoveImageRequest{Image: spec})
	}
	if err != nil {
		refuse(w, err)
		return
	}
	w.WriteHeader(http.StatusOK)
}

// refuse answers with an error in plain text.
func refuse(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	switch status.Code(err) {
	case codes.NotFound:
		code = http.StatusNotFound
	case codes.InvalidArgument:
		code = http.StatusBadRequest
	case codes.Unimplemented:
		code = http.StatusNotImplemented
	}
	http.Error(w, plainError(err), code)
}

// plainError returns an error without the text that gRPC adds.
func plainError(err error) string {
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

// stream writes progress line by line.
type stream struct {
	mu  sync.Mutex
	enc *json.Encoder
	rc  *http.ResponseController
}

func progressStream(w http.ResponseWriter) *stream {
	w.Header().Set("Content-Type", "application/x-ndjson")
	s := &stream{enc: json.NewEncoder(w), rc: http.NewResponseController(w)}
	// The archive is still being read while the response is written.
	_ = s.rc.EnableFullDuplex()
	return s
}

func (s *stream) send(p imageapi.Progress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.enc.Encode(p) == nil {
		_ = s.rc.Flush()
	}
}

func (s *stream) message(m string) { s.send(imageapi.Progress{Message: m}) }

func (s *stream) end(names []string, err error) {
	switch {
	case errors.Is(err, context.Canceled):
		s.send(imageapi.Progress{Error: "stopped"})
	case err != nil:
		s.send(imageapi.Progress{Error: plainError(err)})
	case names == nil:
		s.send(imageapi.Progress{Done: []string{}})
	default:
		s.send(imageapi.Progress{Done: names})
	}
}
