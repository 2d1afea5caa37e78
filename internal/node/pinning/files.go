package pinning

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"
	"k8s.io/utils/dump"

	"carob/internal/base/atomicfile"
	"carob/internal/core/pinning"
)

// Names of the state files (S10.11, S10.24).
const (
	cpuFile    = "cpu_manager_state"
	memoryFile = "memory_manager_state"
)

// maxState is the maximum size of a state file, in bytes.
const maxState = 16 << 20

// cpuState is the content of cpu_manager_state, without its checksums.
type cpuState struct {
	PolicyName string                       `json:"policyName"`
	Shared     string                       `json:"defaultCpuSet"`
	Entries    map[string]map[string]string `json:"entries,omitempty"`
}

// memoryState is the content of memory_manager_state.
type memoryState struct {
	PolicyName string                                   `json:"policyName"`
	Nodes      map[int]*pinning.NodeMemory              `json:"machineState"`
	Entries    map[types.UID]map[string][]pinning.Block `json:"entries,omitempty"`
}

// checked is a state as it is stored: as fields for older readers, and as text with a checksum, which is the
// authoritative form.
type checked[T any] struct {
	State        T      `json:"-"`
	Checksum     uint64 `json:"checksum"`
	Data         string `json:"data"`
	DataChecksum uint64 `json:"dataChecksum"`
}

var errCorrupt = errors.New("checkpoint is corrupted")

// sum is the checksum of a text as upstream computes it.
func sum(text string) uint64 {
	h := fnv.New32a()
	_, _ = io.WriteString(h, dump.ForHash(text)) // it can't fail
	return uint64(h.Sum32())
}

// write stores a state.
func write[T any](path string, state T) error {
	data, err := json.Marshal(state)
	if err != nil {
		return err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return err
	}
	tail, err := json.Marshal(checked[T]{Checksum: sum(string(data)), Data: string(data),
		DataChecksum: sum(string(data))})
	if err != nil {
		return err
	}
	var more map[string]json.RawMessage
	if err := json.Unmarshal(tail, &more); err != nil {
		return err
	}
	maps.Copy(fields, more)
	out, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, out, 0o600)
}

// read returns a stored state; found is false if there is none.
func read[T any](path string) (state T, found bool, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return state, false, nil
	}
	if err != nil {
		return state, false, err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxState+1))
	if err != nil {
		return state, false, err
	}
	var c checked[T]
	if len(text) > maxState || json.Unmarshal(text, &c) != nil || c.Data == "" || sum(c.Data) != c.DataChecksum {
		return state, true, errCorrupt
	}
	if err := json.Unmarshal([]byte(c.Data), &state); err != nil {
		return state, true, fmt.Errorf("%w: %w", errCorrupt, err)
	}
	return state, true, nil
}

// restoring adds to an error of a state file what the administrator can do about it (S10.12, S10.24).
func restoring(err error, kind, path string) error {
	return fmt.Errorf("could not restore state from checkpoint: %w, please drain this node and delete the %s manager "+
		"checkpoint file %q before restarting Kubelet", err, kind, path)
}

// readCPUs restores the CPUs of containers from the state file.
func readCPUs(dir, policy string, to *pinning.Manager) error {
	path := filepath.Join(dir, cpuFile)
	state, found, err := read[cpuState](path)
	switch {
	case err != nil:
		return restoring(err, "CPU", path)
	case !found:
		return nil
	case state.PolicyName != policy:
		return restoring(fmt.Errorf("configured policy %q differs from state checkpoint policy %q", policy,
			state.PolicyName), "CPU", path)
	case to == nil:
		return nil
	}
	shared, err := pinning.ParseCPUs(state.Shared)
	if err != nil {
		return restoring(fmt.Errorf("could not parse default CPU set %.256q: %w", state.Shared, err), "CPU", path)
	}
	entries := map[types.UID]map[string]cpuset.CPUSet{}
	for uid, containers := range state.Entries {
		entries[types.UID(uid)] = map[string]cpuset.CPUSet{}
		for name, list := range containers {
			set, err := pinning.ParseCPUs(list)
			if err != nil {
				return restoring(fmt.Errorf("could not parse cpuset %.256q for container %.256q in pod %.256q: %w", list, name,
					uid, err), "CPU", path)
			}
			entries[types.UID(uid)][name] = set
		}
	}
	if err := to.RestoreCPUs(shared, entries); err != nil {
		return fmt.Errorf("%w; drain this node and delete %s, or undo what changed since it was written", err, path)
	}
	return nil
}

// readMemory restores the memory of containers from the state file.
func readMemory(dir, policy string, to *pinning.Manager) error {
	path := filepath.Join(dir, memoryFile)
	state, found, err := read[memoryState](path)
	switch {
	case err != nil:
		return restoring(err, "memory", path)
	case !found:
		return nil
	case state.PolicyName != policy:
		return restoring(fmt.Errorf("[memorymanager] configured policy %q differs from state checkpoint policy %q",
			policy, state.PolicyName), "memory", path)
	case to == nil:
		return nil
	}
	if err := to.RestoreMemory(state.Nodes, state.Entries); err != nil {
		return fmt.Errorf("%w; drain this node and delete %s, or undo what changed since it was written", err, path)
	}
	return nil
}

// writeAll stores which container has which CPUs and memory.
func writeAll(dir string, cfg *pinning.Config, s *pinning.State) error {
	var errs []error
	if cfg.CPUPolicy == pinning.NameStatic {
		state := cpuState{PolicyName: cfg.CPUPolicy, Shared: s.Shared.String(),
			Entries: map[string]map[string]string{}}
		for uid, containers := range s.CPUs {
			state.Entries[string(uid)] = map[string]string{}
			for name, cpus := range containers {
				state.Entries[string(uid)][name] = cpus.String()
			}
		}
		errs = append(errs, write(filepath.Join(dir, cpuFile), state))
	}
	if cfg.MemoryPolicy == pinning.NameStaticMemory {
		errs = append(errs, write(filepath.Join(dir, memoryFile),
			memoryState{PolicyName: cfg.MemoryPolicy, Nodes: s.Nodes, Entries: s.Memory}))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("store which CPUs and memory pods have: %w", err)
	}
	return nil
}
