package csi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"time"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/base/backoff"
	"carob/internal/core/volume"
	"carob/internal/node/plugins"
)

// nodeIDs is the annotation of a node with its IDs at the drivers: an object of driver to ID (S4.10).
const nodeIDs = "csi.volume.kubernetes.io/nodeid"

// migrated are the plugins whose volumes drivers serve (S4.12).
const (
	migratedKey = "storage.alpha.kubernetes.io/migrated-plugins"
	migrated    = "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,kubernetes.io/azure-file,kubernetes.io/cinder," +
		"kubernetes.io/gce-pd,kubernetes.io/portworx-volume,kubernetes.io/vsphere-volume"
)

// The number of tries of a write to an object that other clients write, too (S4.10).
const writes = 4

// removeTimeout bounds the writes for a driver that is gone: other plugins wait for them.
const removeTimeout = 10 * time.Second

var _ plugins.Handler = (*Manager)(nil)

// Register implements plugins.Handler (S4.8 to S4.11).
func (m *Manager) Register(ctx context.Context, p plugins.Plugin) (func(), error) {
	if err := checkDriver(p.Name); err != nil {
		return nil, err
	}
	version, err := volume.DriverVersion(p.Versions)
	if err != nil {
		return nil, fmt.Errorf("versions of CSI driver %s: %w", p.Name, err)
	}
	conn, err := plugins.Dial(p.Endpoint)
	if err != nil {
		return nil, err
	}
	own, cancel := context.WithCancel(ctx)
	d := &driver{name: p.Name, version: version, endpoint: p.Endpoint, conn: conn, node: csiapi.NewNodeClient(conn),
		cancel: cancel}
	if d.info, err = m.nodeInfo(ctx, d); err == nil {
		err = m.enter(d)
	}
	if err == nil {
		err = m.install(ctx, d.name, d.info)
	}
	if err != nil {
		m.unregister(context.WithoutCancel(ctx), d)
		return nil, err
	}
	if r, err := m.rules(ctx, d.name); err == nil && r.Refresh > 0 {
		m.mu.Lock()
		if !m.closed {
			m.work.Go(func() { m.refreshLimit(own, d, time.Duration(r.Refresh)*time.Second) })
		}
		m.mu.Unlock()
	}
	m.stir() // wakes all that wait for the driver
	m.mu.Lock()
	for _, s := range m.volumes { // any order: each by itself
		if s.handle.Driver == d.name {
			m.unused(s)
		}
	}
	m.mu.Unlock()
	return func() {
		if ctx.Err() != nil && !errors.Is(context.Cause(ctx), plugins.ErrGone) {
			cancel() // the agent ends: the driver stays on the node
			_ = conn.Close()
			return
		}
		m.unregister(context.WithoutCancel(ctx), d)
	}, nil
}

// enter makes a driver the one of its name, unless there is one whose version is as high and whose socket still has a
// listener: a driver that was killed leaves its socket, and may come back with another. A driver of a lower version is
// used again when this one is gone.
func (m *Manager) enter(d *driver) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if old := m.newest(d.name); old != nil && !volume.NewerVersion(d.version, old.version) {
		if listens(old.endpoint) {
			return fmt.Errorf("rejecting CSI driver %s at endpoint %s. Another driver with the same name is "+
				"already registered with a higher supported version: %q", d.name, d.endpoint, old.version)
		}
		m.drivers[d.name] = slices.DeleteFunc(m.drivers[d.name], func(o *driver) bool { return o == old })
	}
	m.drivers[d.name] = append(m.drivers[d.name], d)
	return nil
}

// listens reports whether a process may listen at a socket. It does not wait.
func listens(socket string) bool {
	conn, err := net.DialTimeout("unix", socket, time.Second)
	if err == nil {
		_ = conn.Close()
	}
	return !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.ENOENT)
}

// newest is the driver of a name; nil if there is none. m.mu is held.
func (m *Manager) newest(name string) *driver {
	if all := m.drivers[name]; len(all) > 0 {
		return all[len(all)-1]
	}
	return nil
}

// unregister removes a driver, here and in the API (S4.11); if it replaced another one, that one is used again.
func (m *Manager) unregister(ctx context.Context, d *driver) {
	d.cancel()
	_ = d.conn.Close()
	m.mu.Lock()
	used := m.newest(d.name) == d
	m.drivers[d.name] = slices.DeleteFunc(m.drivers[d.name], func(o *driver) bool { return o == d })
	before := m.newest(d.name)
	if before == nil {
		delete(m.drivers, d.name)
	}
	m.mu.Unlock()
	if !used && before != nil { // another registration has its name
		return
	}
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	if before != nil {
		if err := m.install(ctx, before.name, before.info); err != nil {
			m.cfg.Logger.Error(err, "A CSI driver is used again, but the API has another's figures", "driver", d.name)
		}
		return
	}
	err := m.writeCSINode(ctx, func(n *storagev1.CSINode) *storagev1.CSINode { return volume.RemoveDriver(n, d.name) })
	if err == nil {
		err = m.writeNode(ctx, d.name, "", nil)
	}
	if err != nil {
		m.cfg.Logger.Error(err, "A CSI driver that is gone is still in the API", "driver", d.name)
	}
}

// install records in the API that a driver is on this node.
func (m *Manager) install(ctx context.Context, name string, info nodeInfo) error {
	if err := m.writeNode(ctx, name, info.id, info.topology); err != nil {
		return fmt.Errorf("error updating Node object with CSI driver node info: %w", err)
	}
	if err := m.installCSINode(ctx, name, info); err != nil {
		return fmt.Errorf("error updating CSINode object with CSI driver node info: %w", err)
	}
	return nil
}

func (m *Manager) installCSINode(ctx context.Context, name string, info nodeInfo) error {
	return m.writeCSINode(ctx, func(n *storagev1.CSINode) *storagev1.CSINode {
		return volume.InstallDriver(n, name, info.id, info.limit, slices.Collect(maps.Keys(info.topology)))
	})
}

// refreshLimit polls a driver for the number of volumes that fit on the node, until ctx ends (S4.63).
func (m *Manager) refreshLimit(ctx context.Context, d *driver, period time.Duration) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(period):
		}
		if err := m.newLimit(ctx, d); err != nil && ctx.Err() == nil {
			m.cfg.Logger.Info("Looking at how many volumes of a CSI driver fit on the node failed", "driver", d.name,
				"err", err)
		}
	}
}

// newLimit gets from a driver how many volumes fit on the node, and writes it.
func (m *Manager) newLimit(ctx context.Context, d *driver) error {
	info, err := m.nodeInfo(ctx, d)
	if err != nil {
		return err
	}
	m.mu.Lock()
	used := m.newest(d.name) == d
	m.mu.Unlock()
	if !used { // another one has replaced it
		return nil
	}
	return m.installCSINode(ctx, d.name, info)
}

// tries calls f until it succeeds, a few times.
func tries(ctx context.Context, f func() error) error {
	delays := backoff.Exponential{Initial: 10 * time.Millisecond, Max: 10 * time.Second}
	for n := 1; ; n++ {
		err := f()
		if err == nil || n == writes {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(delays.Delay(n)):
		}
	}
}

// writeNode sets the ID of this node at a driver, "" for none, and adds labels.
func (m *Manager) writeNode(ctx context.Context, name, id string, topology map[string]string) error {
	return tries(ctx, func() error {
		nodes := m.cfg.Client.CoreV1().Nodes()
		n, err := nodes.Get(ctx, m.cfg.Node, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("get the Node object: %w", err)
		}
		labels, err := volume.TopologyLabels(name, n.Labels, topology)
		if err != nil {
			return err
		}
		ids := map[string]string{}
		if text := n.Annotations[nodeIDs]; text != "" {
			if err := json.Unmarshal([]byte(text), &ids); err != nil {
				return fmt.Errorf("read the annotation %s of the node: %w", nodeIDs, err)
			}
		}
		if ids[name] == id && len(labels) == 0 {
			return nil
		}
		delete(ids, name)
		if id != "" {
			ids[name] = id
		}
		var annotation any // null removes it
		if len(ids) > 0 {
			text, err := json.Marshal(ids)
			if err != nil {
				return fmt.Errorf("encode the annotation of the node: %w", err)
			}
			annotation = string(text)
		}
		change := map[string]any{"metadata": map[string]any{"resourceVersion": n.ResourceVersion,
			"annotations": map[string]any{nodeIDs: annotation}, "labels": labels}}
		patch, err := json.Marshal(change)
		if err != nil {
			return fmt.Errorf("encode the change of the node: %w", err)
		}
		if _, err = nodes.Patch(ctx, m.cfg.Node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("change the Node object: %w", err)
		}
		return nil
	})
}

// writeCSINode makes or changes the CSINode object of this node.
func (m *Manager) writeCSINode(ctx context.Context, change func(*storagev1.CSINode) *storagev1.CSINode) error {
	return tries(ctx, func() error {
		api := m.cfg.Client.StorageV1().CSINodes()
		n, err := api.Get(ctx, m.cfg.Node, metav1.GetOptions{})
		switch {
		case isNotFound(err):
			if n, err = m.createCSINode(ctx); err != nil {
				return err
			}
		case err != nil:
			return fmt.Errorf("get the CSINode object: %w", err)
		}
		changed := change(n)
		if sameDrivers(n.Spec.Drivers, changed.Spec.Drivers) {
			return nil
		}
		if _, err = api.Update(ctx, changed, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("change the CSINode object: %w", err)
		}
		return nil
	})
}

func sameDrivers(a, b []storagev1.CSINodeDriver) bool {
	return slices.EqualFunc(a, b, func(x, y storagev1.CSINodeDriver) bool {
		return x.Name == y.Name && x.NodeID == y.NodeID && slices.Equal(x.TopologyKeys, y.TopologyKeys) &&
			limitOf(x) == limitOf(y)
	})
}

// limitOf is how many volumes of a driver fit; -1: any number.
func limitOf(d storagev1.CSINodeDriver) int64 {
	if d.Allocatable == nil || d.Allocatable.Count == nil {
		return -1
	}
	return int64(*d.Allocatable.Count)
}

func (m *Manager) createCSINode(ctx context.Context) (*storagev1.CSINode, error) {
	node, err := m.cfg.Client.CoreV1().Nodes().Get(ctx, m.cfg.Node, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get the Node object: %w", err)
	}
	n, err := m.cfg.Client.StorageV1().CSINodes().Create(ctx, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{
		Name: m.cfg.Node, Annotations: map[string]string{migratedKey: migrated},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: corev1.SchemeGroupVersion.String(), Kind: "Node",
			Name: node.Name, UID: node.UID}}}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create the CSINode object: %w", err)
	}
	if err != nil {
		return nil, err // another writer was faster: the next try reads its object
	}
	return n, nil
}

// keepCSINode makes the CSINode object when it is missing, or belongs to an earlier node of this name (S4.12).
func (m *Manager) keepCSINode(ctx context.Context) {
	delays := backoff.Exponential{Initial: 100 * time.Millisecond, Max: time.Minute}
	for n := 1; ; n++ {
		err := m.ensureCSINode(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		m.cfg.Logger.Info("The CSINode object could not be made yet", "err", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(delays.Delay(n)):
		}
	}
}

func (m *Manager) ensureCSINode(ctx context.Context) error {
	api := m.cfg.Client.StorageV1().CSINodes()
	have, err := api.Get(ctx, m.cfg.Node, metav1.GetOptions{})
	switch {
	case isNotFound(err):
	case err != nil:
		return fmt.Errorf("get the CSINode object: %w", err)
	default:
		node, err := m.cfg.Client.CoreV1().Nodes().Get(ctx, m.cfg.Node, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("get the Node object: %w", err)
		}
		if slices.ContainsFunc(have.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == node.UID }) {
			return nil
		}
		if err := api.Delete(ctx, m.cfg.Node, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{
			UID: &have.UID}}); err != nil && !isNotFound(err) {
			return fmt.Errorf("delete the CSINode object of an earlier node: %w", err)
		}
	}
	if _, err := m.createCSINode(ctx); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return nil
}
