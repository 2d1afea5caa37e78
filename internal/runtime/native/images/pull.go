package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/unpack"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Progress is called with one line for each event of a pull or import; it may be called from
// several goroutines, never after the call has returned.
type Progress func(message string)

func (p Progress) report(format string, args ...any) {
	if p != nil {
		p(fmt.Sprintf(format, args...))
	}
}

var errStalled = errors.New("the registry sent nothing for too long")

// PullImage implements the CRI call. Codes: InvalidArgument for a malformed name,
// NotFound, PermissionDenied; Unavailable with a message that begins with
// RegistryUnavailable (L3.110) when no registry answered.
func (s *Store) PullImage(ctx context.Context, req *cri.PullImageRequest) (*cri.PullImageResponse, error) {
	id, err := s.Pull(ctx, req.GetImage().GetImage(), req.GetAuth(), nil)
	if err != nil {
		return nil, err
	}
	return &cri.PullImageResponse{ImageRef: id}, nil
}

// Pull fetches an image, unpacks it, and returns its ID. Errors are those of PullImage.
func (s *Store) Pull(ctx context.Context, name string, auth *cri.AuthConfig, progress Progress) (string, error) {
	named, err := reference.ParseDockerRef(name)
	if err != nil {
		return "", status.Errorf(codes.InvalidArgument, "failed to parse image reference %q: %v", name, err)
	}
	ref := named.String()
	ctx = inNamespace(ctx)
	// Two concurrent pulls of one name would fetch everything twice; the second one finds the image
	// present.
	unlock, err := s.locks.Acquire(ctx, "pull/"+ref)
	if err != nil {
		return "", rpcError(err)
	}
	defer unlock()
	r, err := s.fetch(ctx, named, ref, auth, progress)
	if err != nil {
		// What has arrived is useless now, and may be large.
		_ = s.collect(context.WithoutCancel(ctx))
		return "", pullError(ref, err)
	}
	return r.id, nil
}

func (s *Store) fetch(ctx context.Context, named reference.Named, ref string, auth *cri.AuthConfig,
	progress Progress) (*record, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ctx, lease, err := s.lease(ctx)
	if err != nil {
		return nil, err
	}
	defer lease.release(ctx)

	watch := stallWatch{limit: s.cfg.StallTimeout, abort: func() { cancel(errStalled) }}
	resolver := docker.NewResolver(docker.ResolverOptions{Hosts: s.hosts(ctx, named, auth)})
	progress.report("resolving %s", ref)
	answered := watch.start()
	name, target, err := resolver.Resolve(ctx, ref)
	answered()
	if err != nil {
		return nil, stalled(ctx, fmt.Errorf("failed to resolve reference %q: %w", ref, err))
	}
	if target.MediaType == images.MediaTypeDockerSchema1Manifest {
		return nil, fmt.Errorf("%s has the outdated format %q: rebuild the image", ref, target.MediaType)
	}
	fetcher, err := resolver.Fetcher(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("failed to get fetcher for %q: %w", name, err)
	}
	fetcher = &watchedFetcher{Fetcher: fetcher, progress: progress, watch: watch}
	sources, err := docker.AppendDistributionSourceLabel(s.content, ref)
	if err != nil {
		return nil, err
	}
	fetch := images.Handlers(s.sane(), remotes.FetchHandler(s.content, fetcher), s.children(), sources)
	if err := s.unpack(ctx, target, fetch); err != nil {
		return nil, stalled(ctx, err)
	}
	names := []string{ref}
	if _, ok := named.(reference.Tagged); ok {
		names = append(names, named.Name()+"@"+target.Digest.String())
	}
	r, err := s.publish(ctx, target, false, names...)
	if err == nil {
		lease.made = append(lease.made, r.chain)
		progress.report("pulled %s, id %s", ref, r.id)
	}
	return r, err
}

func stalled(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errStalled) {
		return errStalled
	}
	return err
}

// Limits of an image. Documents are manifests, indexes, and configurations: they are held in
// memory. The kernel stacks 500 layers.
const (
	maxDocument  = 4 << 20
	maxDocuments = 100
	maxLayers    = 500
)

// sane rejects what no honest registry offers before it is fetched, and what does not fit on the
// disk.
func (s *Store) sane() images.HandlerFunc {
	var documents atomic.Int32
	return func(_ context.Context, d imagespec.Descriptor) ([]imagespec.Descriptor, error) {
		switch {
		case d.Size < 0:
			return nil, fmt.Errorf("%s has an invalid size: %d bytes", d.Digest, d.Size)
		case images.IsLayerType(d.MediaType):
			return nil, s.space.bytes(d.Size)
		case d.Size > maxDocument:
			return nil, tooLarge(d, d.Size)
		case documents.Add(1) > maxDocuments:
			return nil, fmt.Errorf("the image has more than %d manifests", maxDocuments)
		}
		return nil, nil
	}
}

func tooLarge(d imagespec.Descriptor, n int64) error {
	return fmt.Errorf("%s of type %q has %s, more than the %s that are allowed", d.Digest, d.MediaType, size(n),
		size(maxDocument))
}

// boundedContent opens no document that is too large to be held in memory. The size that a descriptor names says
// nothing about content that is already there: an archive brings its own, and a document may be another image's layer.
type boundedContent struct{ content.Store }

// ReaderAt implements content.Provider.
func (b boundedContent) ReaderAt(ctx context.Context, d imagespec.Descriptor) (content.ReaderAt, error) {
	r, err := b.Store.ReaderAt(ctx, d)
	if err == nil && !images.IsLayerType(d.MediaType) && r.Size() > maxDocument {
		return nil, errors.Join(tooLarge(d, r.Size()), r.Close())
	}
	return r, err
}

// boundLayers rejects a manifest with more layers than the kernel can stack.
func boundLayers(h images.HandlerFunc) images.HandlerFunc {
	return func(ctx context.Context, d imagespec.Descriptor) ([]imagespec.Descriptor, error) {
		children, err := h(ctx, d)
		layers := 0
		for _, c := range children {
			if images.IsLayerType(c.MediaType) {
				layers++
			}
		}
		if layers > maxLayers {
			return nil, fmt.Errorf("manifest %s has %d layers, more than the %d that can be mounted", d.Digest, layers,
				maxLayers)
		}
		return children, err
	}
}

// children walks from an index to the manifest of this platform, its configuration, and its layers,
// and links each to its parent for the garbage collector. Compressed layers are not linked: once
// unpacked, they are garbage.
func (s *Store) children() images.HandlerFunc {
	h := images.SetChildrenMappedLabels(s.content, boundLayers(images.ChildrenHandler(s.content)),
		images.ChildGCLabelsFilterLayers)
	return images.LimitManifests(images.FilterPlatforms(h, s.platform), s.platform, 1)
}

// unpack runs the handler on an image and turns its layers into snapshots.
func (s *Store) unpack(ctx context.Context, target imagespec.Descriptor, h images.Handler) error {
	limit := semaphore.NewWeighted(int64(s.cfg.Downloads))
	u, err := unpack.NewUnpacker(ctx, s.content,
		unpack.WithUnpackPlatform(unpack.Platform{
			Platform: s.platform, SnapshotterKey: snapshotterName, Snapshotter: s.snapshots,
			Applier:      &applier{content: s.content, space: s.space},
			SnapshotOpts: []snapshots.Opt{snapshots.WithLabels(map[string]string{labelUnsynced: s.syncer.boot})},
		}),
		unpack.WithLimiter(limit),
		unpack.WithDuplicationSuppressor(&s.locks))
	if err != nil {
		return err
	}
	err = images.Dispatch(ctx, u.Unpack(h), limit, target)
	n, unpackErr := u.Wait()
	if err == nil {
		err = unpackErr
	}
	if err != nil {
		return err
	}
	if n.Unpacks == 0 {
		return fmt.Errorf("%s holds no image for %s", target.Digest, hostPlatform())
	}
	return nil
}

// stallWatch ends a pull when a wait for the registry takes too long. The time between two waits
// (writing, unpacking) does not count.
type stallWatch struct {
	limit time.Duration
	abort func()
}

func (w stallWatch) start() (answered func()) {
	t := time.AfterFunc(w.limit, w.abort)
	return func() { t.Stop() }
}

// watchedFetcher reports each layer and monitors each wait for bytes.
type watchedFetcher struct {
	remotes.Fetcher
	progress Progress
	watch    stallWatch
}

func (f *watchedFetcher) Fetch(ctx context.Context, d imagespec.Descriptor) (io.ReadCloser, error) {
	if images.IsLayerType(d.MediaType) {
		f.progress.report("fetching layer %s (%.1f MB)", short(d.Digest), float64(d.Size)/1e6)
	}
	d.URLs = nil // a manifest must not make the node contact addresses of its choice
	answered := f.watch.start()
	body, err := f.Fetcher.Fetch(ctx, d)
	answered()
	if err != nil {
		return nil, err
	}
	w := &watchedBody{ReadCloser: body, watch: f.watch, of: d, left: d.Size}
	if seeker, ok := body.(io.Seeker); ok {
		// Allows resuming an interrupted download.
		return &watchedSeeker{watchedBody: w, Seeker: seeker}, nil
	}
	return w, nil
}

// watchedBody never returns more than the announced size.
type watchedBody struct {
	io.ReadCloser
	watch stallWatch
	of    imagespec.Descriptor
	left  int64
}

func (b *watchedBody) Read(p []byte) (int, error) {
	defer b.watch.start()()
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("the registry sends more than the %d bytes that %s has", b.of.Size, b.of.Digest)
	}
	return n, err
}

type watchedSeeker struct {
	*watchedBody
	io.Seeker
}

func (s *watchedSeeker) Seek(offset int64, whence int) (int64, error) {
	at, err := s.Seeker.Seek(offset, whence)
	if err == nil {
		s.left = s.of.Size - at
	}
	return at, err
}

func short(d digest.Digest) string {
	if e := d.Encoded(); len(e) > 12 {
		return e[:12]
	}
	return d.String()
}

func readJSON(ctx context.Context, p content.Provider, d imagespec.Descriptor, v any) error {
	body, err := content.ReadBlob(ctx, p, d)
	if err != nil {
		return err
	}
	return json.Unmarshal(body, v)
}
