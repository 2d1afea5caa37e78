// Package profiles finds the seccomp filter of a container: of the runtime's default profile, or of one in a file of
// the host. The native runtime drives it; it must never load a filter.
package profiles

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

// Profiles compiles seccomp profiles and caches the filters: of the default profile by capabilities, of a file until
// it changes.
type Profiles struct {
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

// New returns the profiles of a host, whose relative names are below root.
func New(root string) *Profiles {
	return &Profiles{root: root, byCap: map[uint64]*plan.Filter{}, files: map[string]fileFilter{}}
}

// Filter returns the filter for a container with these capabilities: of no profile (nil: unconfined), the runtime's
// default, or a file on this host.
func (ps *Profiles) Filter(sc *cri.LinuxContainerSecurityContext, caps uint64) (*plan.Filter, error) {
	p := sc.GetSeccomp()
	if p == nil {
		p = fromText(sc.GetSeccompProfilePath())
	}
	switch {
	case p == nil || p.ProfileType == cri.SecurityProfile_Unconfined:
		return nil, nil
	case p.ProfileType == cri.SecurityProfile_Localhost:
		return ps.file(strings.TrimPrefix(p.LocalhostRef, "localhost/"))
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if known := ps.byCap[caps]; known != nil {
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
	ps.byCap[caps] = plan.NewFilter(prog)
	return ps.byCap[caps], nil
}

// fromText parses the older form: runtime/default, unconfined, localhost/path.
func fromText(s string) *cri.SecurityProfile {
	switch {
	case s == "" || s == "unconfined":
		return nil
	case strings.HasPrefix(s, "localhost/"):
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: s}
	}
	return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
}

func (ps *Profiles) file(name string) (*plan.Filter, error) {
	if !filepath.IsAbs(name) {
		name = filepath.Join(ps.root, name)
	}
	st, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, status.Errorf(codes.InvalidArgument,
			"cannot load seccomp profile %q: open %s: no such file or directory", name, name)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot load seccomp profile: %w", err)
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if known, ok := ps.files[name]; ok && known.changed.Equal(st.ModTime()) && known.size == st.Size() {
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
	ps.files[name] = fileFilter{st.ModTime(), st.Size(), made}
	return ps.files[name].filter, nil
}
