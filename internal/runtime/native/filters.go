package native

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	defaults "github.com/containerd/containerd/v2/contrib/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime/native/plan"
	"carob/internal/runtime/native/seccomp"
)

// filters compiles seccomp profiles and caches them: the default profile by capabilities, a file by
// its content.
type filters struct {
	root string

	mu    sync.Mutex
	byCap map[uint64]*plan.Filter
	files map[string]fileFilter
}

type fileFilter struct {
	changed time.Time
	size    int64
	filter  *plan.Filter
}

func newFilters(root string) *filters {
	return &filters{root: root, byCap: map[uint64]*plan.Filter{}, files: map[string]fileFilter{}}
}

// of returns the filter for a container: no profile (nil: unconfined), the runtime's default, or a
// file on this host.
func (f *filters) of(sc *cri.LinuxContainerSecurityContext, caps uint64) (*plan.Filter, error) {
	p := sc.GetSeccomp()
	if p == nil {
		p = seccompProfile(sc.GetSeccompProfilePath())
	}
	switch {
	case p == nil || p.ProfileType == cri.SecurityProfile_Unconfined:
		return nil, nil
	case p.ProfileType == cri.SecurityProfile_Localhost:
		return f.file(strings.TrimPrefix(p.LocalhostRef, "localhost/"))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if known := f.byCap[caps]; known != nil {
		return known, nil
	}
	var names []string
	for i, n := range plan.CapabilityNames {
		if caps>>i&1 == 1 {
			names = append(names, "CAP_"+n)
		}
	}
	profile := defaults.DefaultProfile(&specs.Spec{
		Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: names}}, Linux: &specs.Linux{},
	})
	prog, err := seccomp.Compile(profile)
	if err != nil {
		return nil, fmt.Errorf("the default seccomp profile: %w", err)
	}
	f.byCap[caps] = plan.NewFilter(prog)
	return f.byCap[caps], nil
}

// seccompProfile parses the older form: runtime/default, unconfined, localhost/path.
func seccompProfile(s string) *cri.SecurityProfile {
	switch {
	case s == "" || s == "unconfined":
		return nil
	case strings.HasPrefix(s, "localhost/"):
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: s}
	}
	return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
}

func (f *filters) file(name string) (*plan.Filter, error) {
	if !filepath.IsAbs(name) {
		name = filepath.Join(f.root, name)
	}
	st, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, status.Errorf(codes.InvalidArgument,
			"cannot load seccomp profile %q: open %s: no such file or directory", name, name)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot load seccomp profile: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if known, ok := f.files[name]; ok && known.changed.Equal(st.ModTime()) && known.size == st.Size() {
		return known.filter, nil
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("cannot load seccomp profile: %w", err)
	}
	var profile specs.LinuxSeccomp
	if err := json.Unmarshal(b, &profile); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "decoding seccomp profile %q failed: %v", name, err)
	}
	prog, err := seccomp.Compile(&profile)
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "seccomp profile %q: %v", name, err)
	}
	made := plan.NewFilter(prog)
	if prog.Notify {
		if !filepath.IsAbs(profile.ListenerPath) {
			return nil, status.Errorf(codes.InvalidArgument,
				"seccomp profile %q: SCMP_ACT_NOTIFY needs a listenerPath, where an agent takes the calls", name)
		}
		made.Agent = &plan.SeccompAgent{Path: profile.ListenerPath, Metadata: profile.ListenerMetadata}
	}
	f.files[name] = fileFilter{st.ModTime(), st.Size(), made}
	return f.files[name].filter, nil
}
