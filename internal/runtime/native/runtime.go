package native

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime/native/cgroups"
	"carob/internal/runtime/native/criu"
	"carob/internal/runtime/native/monitor"
	"carob/internal/runtime/native/openfiles"
	"carob/internal/runtime/native/plan"
	"carob/internal/runtime/native/portforward"
	"carob/internal/runtime/native/profiles"
	"carob/internal/runtime/native/state"
)

// Runtime is the native runtime. It is safe for concurrent use. Its lock protects only the maps;
// each sandbox and container has its own.
type Runtime struct {
	Images // the image calls of CRI

	cfg       Config
	programs  *monitor.Programs
	groups    *cgroups.Hierarchies
	systemd   *cgroups.Systemd // nil if this process creates the cgroups of containers, not systemd
	host      hostFacts
	seccomp   *profiles.Profiles
	events    broker
	streaming Streaming
	monitors  string // cgroup of all monitors
	pool      *monitor.Pool
	retries   *state.Retries
	scraped   openfiles.Files // of running containers and ready sandboxes
	forwards  portforward.Forwards

	apparmorWarning sync.Once
	checkpoints     criu.Dumper
	secrets         sync.Mutex          // held while the directory of secrets is mounted, unmounted, or written to
	alter           func(*plan.Program) // set by tests that replace programs

	mu         sync.RWMutex
	sandboxes  map[string]*sandbox
	containers map[string]*container
	names      map[string]string // of sandboxes and containers → id
}

// hostFacts describe what this host allows.
type hostFacts struct {
	caps     uint64 // carob's own bounding set: no container gets more
	apparmor bool
	selinux  bool

	foreignProc bool // the /proc of another PID namespace can be mounted (Linux 6.17)
}

// New creates the runtime and adopts every sandbox and container in the directories: those that
// ended meanwhile have their exit codes, unfinished ones are removed. ctx limits the adoption only.
func New(ctx context.Context, cfg Config) (*Runtime, error) {
	if cfg.Images == nil || cfg.Network == nil || cfg.RootDir == "" || cfg.StateDir == "" {
		return nil, errors.New("native runtime: RootDir, StateDir, Images and Network are needed")
	}
	if cfg.CgroupRoot == "" {
		cfg.CgroupRoot = "/carob"
	}
	if cfg.Name == "" {
		cfg.Name = "carob"
	}
	if cfg.Version == "" {
		cfg.Version = "0.0.0"
	}
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("finding cgroups: %w", err)
	}
	groups, err := cgroups.Find(mountinfo)
	if err != nil {
		return nil, err
	}
	programs, err := monitor.Load(monitorProgram, helperProgram)
	if err != nil {
		return nil, err
	}
	r := &Runtime{
		Images: cfg.Images, cfg: cfg, programs: programs, groups: groups, host: findHostFacts(),
		monitors:  cfg.CgroupRoot + "/monitors",
		sandboxes: map[string]*sandbox{}, containers: map[string]*container{}, names: map[string]string{},
		retries: state.NewRetries(),
	}
	outside := groups.Whole() // whatever stops carob's unit must not stop the monitors
	if cfg.SystemdCgroups {
		r.groups = outside
		if r.systemd, err = cgroups.NewSystemd(ctx, groups.V2); err != nil {
			return nil, errors.Join(err, programs.Close())
		}
	}
	r.seccomp = profiles.New(cfg.SeccompRoot)
	for _, d := range []string{r.sandboxDir(""), r.containerDir(""), r.runDir(""), r.secretDir(""), r.rootDir()} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, errors.Join(fmt.Errorf("making the runtime's directories: %w", err), programs.Close())
		}
	}
	if err := outside.Make(r.monitors); err != nil {
		return nil, errors.Join(err, programs.Close())
	}
	r.pool = r.newPool()
	if err := r.adopt(ctx); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// newPool starts monitors in advance, and a helper for the first container of each.
func (r *Runtime) newPool() *monitor.Pool {
	return monitor.NewPool(r.cfg.SandboxPool, func() (*monitor.Monitor, error) {
		m, err := r.programs.StartMonitor(r.groups.Whole().Entry(r.monitors))
		if err != nil {
			return nil, err
		}
		if _, err := m.List(); err != nil { // warmed up here, so that the first pod does not wait for it
			m.Close()
			return nil, err
		}
		return m, nil
	}, r.prepareHelper)
}

// UseStreaming sets the creator of streaming URLs; it must be called before the first Exec.
func (r *Runtime) UseStreaming(s Streaming) { r.streaming = s }

// Streams returns the interface that a streaming server calls.
func (r *Runtime) Streams() *Streams { return &Streams{r} }

// Close releases everything in this process. Containers keep running and are adopted by the next
// New.
func (r *Runtime) Close() error {
	r.retries.Close()
	r.scraped.Close()
	r.pool.Close()
	r.events.close()
	if r.systemd != nil {
		r.systemd.Close()
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, s := range r.sandboxes {
		if m := s.line(); m != nil {
			m.Close()
		}
	}
	return r.programs.Close()
}

// RemoveAll stops and removes every sandbox and container.
func (r *Runtime) RemoveAll(ctx context.Context) error {
	list, err := r.ListPodSandbox(ctx, nil)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	errs := make([]error, len(list.Items))
	slots := make(chan struct{}, 16)
	for i, s := range list.Items {
		wg.Add(1)
		slots <- struct{}{}
		go func() {
			defer wg.Done()
			_, errs[i] = r.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: s.Id})
			<-slots
		}()
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (r *Runtime) sandboxDir(id string) string { return filepath.Join(r.cfg.RootDir, "sandboxes", id) }

func (r *Runtime) containerDir(id string) string {
	return filepath.Join(r.cfg.RootDir, "containers", id)
}

func (r *Runtime) runDir(id string) string { return filepath.Join(r.cfg.StateDir, "sandboxes", id) }

// rootDir is where each helper mounts its container's root, in its own mount namespace.
func (r *Runtime) rootDir() string { return filepath.Join(r.cfg.StateDir, "rootfs") }

func newID() string {
	var b [32]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// reserve reserves a name for id until release.
func (r *Runtime) reserve(name, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if other, ok := r.names[name]; ok {
		return status.Errorf(codes.AlreadyExists, "name %q is reserved for %q", name, other)
	}
	r.names[name] = id
	return nil
}

func (r *Runtime) release(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.names, name)
}

// sandbox finds a sandbox by its ID or a unique prefix of it.
func (r *Runtime) sandbox(id string) (*sandbox, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return lookup(r.sandboxes, id, "sandbox")
}

// container finds a container by its ID or a unique prefix of it.
func (r *Runtime) container(id string) (*container, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return lookup(r.containers, id, "container")
}

func lookup[T any](m map[string]*T, id, kind string) (*T, error) {
	if v := m[id]; v != nil {
		return v, nil
	}
	var found *T
	for k, v := range m {
		if id != "" && strings.HasPrefix(k, id) {
			if found != nil {
				return nil, status.Errorf(codes.InvalidArgument, "%s id %q is ambiguous", kind, id)
			}
			found = v
		}
	}
	if found == nil {
		return nil, status.Errorf(codes.NotFound, "an error occurred when try to find %s %q: not found", kind, id)
	}
	return found, nil
}

// containersOf returns the containers of a sandbox, oldest first.
func (r *Runtime) containersOf(sandbox string) []*container {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var list []*container
	for _, c := range r.containers {
		if c.rec.SandboxID == sandbox {
			list = append(list, c)
		}
	}
	sort.Slice(list, func(i, j int) bool { return list[i].rec.CreatedAt < list[j].rec.CreatedAt })
	return list
}

// Version returns the name and version of the runtime.
func (r *Runtime) Version(context.Context, *cri.VersionRequest) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{Version: "0.1.0", RuntimeName: r.cfg.Name, RuntimeVersion: r.cfg.Version,
		RuntimeApiVersion: "v1"}, nil
}

// handlerName is the name of this runtime in a RuntimeClass, besides the default "".
const handlerName = "carob"

// Status returns the two conditions and the features of the runtime.
func (r *Runtime) Status(ctx context.Context, req *cri.StatusRequest) (*cri.StatusResponse, error) {
	network := &cri.RuntimeCondition{Type: cri.NetworkReady, Status: true}
	if err := r.cfg.Network.Ready(ctx); err != nil {
		network.Status, network.Reason, network.Message = false, "NetworkPluginNotReady",
			"Network plugin returns error: "+err.Error()
	}
	resp := &cri.StatusResponse{
		Status: &cri.RuntimeStatus{Conditions: []*cri.RuntimeCondition{{Type: cri.RuntimeReady, Status: true},
			network}},
		RuntimeHandlers: []*cri.RuntimeHandler{
			{Name: "", Features: &cri.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: true, UserNamespaces: true}},
			{Name: handlerName,
				Features: &cri.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: true, UserNamespaces: true}},
		},
		Features: &cri.RuntimeFeatures{SupplementalGroupsPolicy: true, MountOptions: true},
	}
	if req.GetVerbose() {
		resp.Info = map[string]string{"config": fmt.Sprintf(
			`{"rootDir":%q,"stateDir":%q,"cgroupRoot":%q,"cgroupVersion":%d}`,
			r.cfg.RootDir, r.cfg.StateDir, r.cfg.CgroupRoot, map[bool]int{false: 1, true: 2}[r.groups.V2])}
	}
	return resp, nil
}

// RuntimeConfig returns how the agent must name cgroup parents.
func (r *Runtime) RuntimeConfig(context.Context, *cri.RuntimeConfigRequest) (*cri.RuntimeConfigResponse, error) {
	driver := cri.CgroupDriver_CGROUPFS
	if r.systemd != nil {
		driver = cri.CgroupDriver_SYSTEMD
	}
	return &cri.RuntimeConfigResponse{Linux: &cri.LinuxRuntimeConfiguration{CgroupDriver: driver}}, nil
}

// UpdateRuntimeConfig accepts the node's pod range, with which the pod network is already
// configured.
func (r *Runtime) UpdateRuntimeConfig(context.Context,
	*cri.UpdateRuntimeConfigRequest) (*cri.UpdateRuntimeConfigResponse, error) {
	return &cri.UpdateRuntimeConfigResponse{}, nil
}

// coded gives an error a gRPC code, Unknown if there is no better one. An error with a code keeps it;
// its text is cleaned of gRPC's own prefix in the middle.
func coded(err error) error {
	if err == nil {
		return nil
	}
	code, text := codes.Unknown, err.Error()
	var inner interface {
		error
		GRPCStatus() *status.Status
	}
	switch {
	case errors.As(err, &inner):
		st := inner.GRPCStatus()
		code, text = st.Code(), strings.Replace(text, inner.Error(), st.Message(), 1)
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	}
	return status.Error(code, text)
}
