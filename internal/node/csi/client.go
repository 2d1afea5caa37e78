package csi

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"

	"carob/internal/core/volume"
)

func isNotFound(err error) bool { return apierrors.IsNotFound(err) }

// driver is a registered driver.
type driver struct {
	name, version string
	endpoint      string // path of its socket
	conn          *grpc.ClientConn
	node          csiapi.NodeClient
	cancel        context.CancelFunc
	info          nodeInfo // as reported when it registered
}

// call calls a driver with a deadline, which also bounds the wait for its socket, and counts the call.
func call[Q, A any](ctx context.Context, m *Manager, d *driver, method string,
	rpc func(context.Context, Q, ...grpc.CallOption) (A, error), req Q) (A, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	start := time.Now()
	answer, err := rpc(ctx, req, grpc.MaxCallRecvMsgSize(maxAnswer))
	m.cfg.Meter.Called(d.name, "/csi.v1.Node/"+method, status.Code(err).String(), time.Since(start))
	return answer, err
}

// maxAnswer limits the response of a driver, in bytes.
const maxAnswer = 1 << 20

// can are the capabilities of a driver's node service.
type can map[csiapi.NodeServiceCapability_RPC_Type]bool

func (m *Manager) capabilities(ctx context.Context, d *driver) (can, error) {
	answer, err := call(ctx, m, d, "NodeGetCapabilities", d.node.NodeGetCapabilities,
		&csiapi.NodeGetCapabilitiesRequest{})
	if err != nil {
		return nil, &transient{fmt.Errorf("get the capabilities of driver %s: %w", d.name, err)}
	}
	c := can{}
	for _, o := range answer.GetCapabilities() {
		c[o.GetRpc().GetType()] = true
	}
	return c, nil
}

const (
	canStage       = csiapi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME
	canStats       = csiapi.NodeServiceCapability_RPC_GET_VOLUME_STATS
	canExpand      = csiapi.NodeServiceCapability_RPC_EXPAND_VOLUME
	canMultiWriter = csiapi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER
	canGroup       = csiapi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP
)

// transient is an error that came before a call of a driver that would have to be undone.
type transient struct{ error }

func (t *transient) Unwrap() error { return t.error }

// uncertain reports whether a driver may have done what was requested despite the error, or
// may still do it (S4.59).
func uncertain(err error) bool {
	if _, ok := errors.AsType[*transient](err); ok {
		return false
	}
	s, ok := status.FromError(err)
	if !ok {
		return true
	}
	switch s.Code() {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		return true
	}
	return false
}

// final reports whether a driver has answered a call with an error, and certainly does no longer what was requested.
func final(err error) bool {
	_, before := errors.AsType[*transient](err)
	_, answered := status.FromError(err)
	return answered && !before && !uncertain(err)
}

// infeasible reports whether repeating a call is useless (S5.17).
func infeasible(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.OutOfRange, codes.NotFound:
		return true
	}
	return false
}

// capability is how a volume is to be used (S4.60, S4.61).
func capability(modes []corev1.PersistentVolumeAccessMode, c can, block bool, fsType string, flags []string,
	group string) *csiapi.VolumeCapability {
	mode := corev1.ReadWriteOnce
	if len(modes) > 0 {
		mode = modes[0]
	}
	out := &csiapi.VolumeCapability{AccessMode: &csiapi.VolumeCapability_AccessMode{Mode: accessMode(mode, c)}}
	if block {
		out.AccessType = &csiapi.VolumeCapability_Block{Block: &csiapi.VolumeCapability_BlockVolume{}}
	} else {
		out.AccessType = &csiapi.VolumeCapability_Mount{Mount: &csiapi.VolumeCapability_MountVolume{FsType: fsType,
			MountFlags: flags, VolumeMountGroup: group}}
	}
	return out
}

func accessMode(mode corev1.PersistentVolumeAccessMode, c can) csiapi.VolumeCapability_AccessMode_Mode {
	switch mode {
	case corev1.ReadOnlyMany:
		return csiapi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	case corev1.ReadWriteMany:
		return csiapi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	case corev1.ReadWriteOncePod:
		if c[canMultiWriter] {
			return csiapi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
		}
	case corev1.ReadWriteOnce:
		if c[canMultiWriter] {
			return csiapi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
		}
	}
	return csiapi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
}

// nodeInfo is what a driver reports about this node.
type nodeInfo struct {
	id       string
	limit    *int32 // volumes; nil: any number
	topology map[string]string
}

// nodeInfo calls NodeGetInfo and validates the response, which is not trusted.
func (m *Manager) nodeInfo(ctx context.Context, d *driver) (nodeInfo, error) {
	answer, err := call(ctx, m, d, "NodeGetInfo", d.node.NodeGetInfo, &csiapi.NodeGetInfoRequest{})
	if err != nil {
		return nodeInfo{}, fmt.Errorf("NodeGetInfo: %w", err)
	}
	info := nodeInfo{id: answer.GetNodeId(), topology: map[string]string{}}
	const maxID = 256 // CSI allows that much
	if info.id == "" || len(info.id) > maxID || !utf8.ValidString(info.id) {
		return nodeInfo{}, fmt.Errorf("NodeGetInfo: a node ID of %d bytes", len(info.id))
	}
	switch n := answer.GetMaxVolumesPerNode(); {
	case n > 0:
		info.limit = new(int32(min(n, math.MaxInt32)))
	case n < 0:
		m.cfg.Logger.Info(
			"A CSI driver reports a negative volume limit; it is treated as no limit",
			"driver",
			d.name,
			"limit",
			n,
		)
	}
	const maxSegments = 64
	segments := answer.GetAccessibleTopology().GetSegments()
	if len(segments) > maxSegments {
		return nodeInfo{}, fmt.Errorf("NodeGetInfo: %d topology segments", len(segments))
	}
	for k, v := range segments { // any order: the result is a map, and any error will do
		if why := append(validation.IsQualifiedName(k), validation.IsValidLabelValue(v)...); len(why) > 0 {
			return nodeInfo{}, fmt.Errorf(
				"NodeGetInfo: topology segment %.80q=%.80q: %s",
				k,
				v,
				strings.Join(why, "; "),
			)
		}
		info.topology[k] = v
	}
	return info, nil
}

// registered is the driver of a name.
func (m *Manager) registered(name string) (*driver, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if d := m.newest(name); d != nil {
		return d, nil
	}
	return nil, &transient{fmt.Errorf("driver name %s not found in the list of registered CSI drivers", name)}
}

// plugin is the name of a volume's plugin in metrics.
func plugin(h volume.Handle) string { return volume.CSIPlugin + ":" + h.Driver }
