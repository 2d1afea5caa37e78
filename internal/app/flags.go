package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"carob/internal/base/atomicfile"
	"carob/internal/base/instance"
	"carob/internal/runtime/router"
)

// flagsFile records how an instance was started, for the next start and for `carob down --pods`
// after it ended.
const flagsFile = "flags.json"

// lastStart is the content of flagsFile.
type lastStart struct {
	instance.Flags
	PodsEnded bool `json:",omitempty"` // set by `carob down --pods`
}

func saveFlags(dataDir string, l lastStart) error {
	b, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("encode flags: %w", err)
	}
	if err := atomicfile.Write(filepath.Join(dataDir, flagsFile), b, 0o600); err != nil {
		return fmt.Errorf("save flags: %w", err)
	}
	return nil
}

// readFlags returns the last start, or the zero value if there was none.
func readFlags(dataDir string) (lastStart, error) {
	var l lastStart
	b, err := os.ReadFile(filepath.Join(dataDir, flagsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &l)
	}
	if err != nil {
		return l, fmt.Errorf("read flags of the last start: %w", err)
	}
	return l, nil
}

// lastFlags returns the instance with the flags of the last start, whose files may be gone.
func lastFlags(in instance.Instance) (instance.Instance, error) {
	l, err := readFlags(in.DataDir)
	if err != nil || l.DataDir == "" {
		return in, err
	}
	return instance.Recorded(l.Flags, in.NodeName)
}

// sameAsBefore rejects a start whose flags would lose something of the last start.
func sameAsBefore(in instance.Instance) error {
	last, err := readFlags(in.DataDir)
	if err != nil || last.DataDir == "" || in.Force {
		return err
	}
	elsewhere, err := router.Endpoints(handlersDir(in))
	if err != nil {
		return err
	}
	if refused := instance.Change(last.Flags, in.Flags,
		instance.Facts{Pods: mayHavePods(in.DataDir, last), PodsAt: elsewhere}); len(refused) > 0 {
		return fmt.Errorf("this data directory was started with other flags: %w", instance.ChangeError(refused))
	}
	return nil
}

// mayHavePods reports whether pods of the last start may still run. Only carob's own runtime can be
// checked without opening it.
func mayHavePods(dataDir string, last lastStart) bool {
	if last.PodsEnded {
		return false
	}
	dir := filepath.Join(dataDir, runtimeDir, "sandboxes")
	if last.RuntimeEndpoint != "" {
		dir = filepath.Join(dataDir, "node", "pods")
	}
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) > 0 {
		return true
	}
	elsewhere, err := router.Endpoints(filepath.Join(dataDir, runtimeDir, handlersName))
	return err == nil && len(elsewhere) > 0
}

// clusterFile contains the UID of the cluster that this node's pods belong to.
const clusterFile = "cluster"

// checkCluster compares the cluster in the store with the one that this node's pods belong to. A node agent ends all
// pods that its API server does not have. If the store was lost, emptied, or confused with another, those would be all
// pods.
func (c *carob) checkCluster(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(c.server.ClientConfig("carob:start", "system:masters"))
	if err != nil {
		return fmt.Errorf("read the UID of the cluster: %w", err)
	}
	// By convention, the UID of this namespace is the cluster's UID.
	ns, err := client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the UID of the cluster: %w", err)
	}
	file := filepath.Join(c.in.DataDir, "node", clusterFile)
	b, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the cluster that this node belongs to: %w", err)
	}
	known := types.UID(strings.TrimSpace(string(b)))
	if known == ns.UID {
		return nil
	}
	if err := otherCluster(known, ns.UID, c.hadPods, c.in.Force); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
		return fmt.Errorf("save the cluster that this node belongs to: %w", err)
	}
	return atomicfile.Write(file, []byte(ns.UID+"\n"), 0o600)
}

// otherCluster decides whether a node of the cluster `known` may join the cluster `found`.
func otherCluster(known, found types.UID, pods, force bool) error {
	if known == "" || known == found || !pods || force {
		return nil
	}
	return fmt.Errorf(
		"the store holds another cluster (UID %s) than the one that the pods on this machine belong to (UID %s), so the pods would be ended: "+
			"restore the previous store, or end the pods with `carob down --pods`, or start with --force", found, known)
}
