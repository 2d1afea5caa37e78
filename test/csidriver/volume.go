package csidriver

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// volume is what the driver remembers of a volume or a snapshot.
type volume struct {
	Size      int64
	Source    string    // whose copy it is; of a snapshot, its volume
	Made      time.Time // of a snapshot
	Ready     bool      // its data are complete
	Snapshot  bool
	Ephemeral bool
	Attached  bool
	Staged    []string // paths
	Published []string
}

// of is the record of a volume, an empty one if there is none; the caller has the lock.
func (d *Driver) of(id string) *volume {
	v := d.volumes[id]
	if v == nil {
		v = &volume{}
		d.volumes[id] = v
	}
	return v
}

// change changes the record of a volume.
func (d *Driver) change(id string, f func(*volume)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	f(d.of(id))
	return d.save()
}

// get is a copy of the record of a volume, an empty one if there is none.
func (d *Driver) get(id string) volume {
	d.mu.Lock()
	defer d.mu.Unlock()
	if v := d.volumes[id]; v != nil {
		c := *v
		c.Staged, c.Published = slices.Clone(v.Staged), slices.Clone(v.Published)
		return c
	}
	return volume{}
}

// forget deletes the record of a volume.
func (d *Driver) forget(id string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.volumes, id)
	return d.save()
}

// save writes the records to the state file, if there is one. The caller has the lock.
func (d *Driver) save() error {
	if d.cfg.State == "" {
		return nil
	}
	text, err := json.Marshal(d.volumes)
	if err == nil {
		err = os.WriteFile(d.cfg.State+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(d.cfg.State+".new", d.cfg.State)
	}
	if err != nil {
		return status.Errorf(codes.Internal, "save the records of volumes: %v", err)
	}
	return nil
}

// load reads the state file.
func (d *Driver) load() error {
	if d.cfg.State == "" {
		return nil
	}
	text, err := os.ReadFile(d.cfg.State)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(text, &d.volumes)
	}
	if err != nil {
		return fmt.Errorf("read the records of volumes: %w", err)
	}
	return nil
}

// add appends to a list what it does not have.
func add(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}

func remove(list []string, s string) []string {
	return slices.DeleteFunc(list, func(x string) bool { return x == s })
}

// lifecycle refuses calls that come in an order that the specification of CSI does not allow, if the driver is set to.
func (d *Driver) lifecycle(req any) error {
	if !d.cfg.Lifecycle {
		return nil
	}
	var id, problem string
	switch r := req.(type) {
	case *csi.DeleteVolumeRequest:
		id = r.VolumeId
		if v := d.get(id); v.Attached || len(v.Staged)+len(v.Published) > 0 {
			problem = fmt.Sprintf("is used: attached %v, staged %v, published %v", v.Attached, v.Staged, v.Published)
		}
	case *csi.ControllerUnpublishVolumeRequest:
		id = r.VolumeId
		if v := d.get(id); len(v.Staged)+len(v.Published) > 0 {
			problem = fmt.Sprintf("is used: staged %v, published %v", v.Staged, v.Published)
		}
	case *csi.NodeStageVolumeRequest:
		id = r.VolumeId
		if v := d.get(id); !v.Attached {
			problem = "is not attached"
		} else if len(v.Staged) > 0 && !slices.Contains(v.Staged, r.StagingTargetPath) {
			problem = fmt.Sprintf("is staged already, at %v", v.Staged)
		}
	case *csi.NodeUnstageVolumeRequest:
		id = r.VolumeId
		if v := d.get(id); len(v.Published) > 0 {
			problem = fmt.Sprintf("is published at %v", v.Published)
		}
	case *csi.NodePublishVolumeRequest:
		id = r.VolumeId
		if v := d.get(id); !inline(r) && !slices.Contains(v.Staged, r.StagingTargetPath) {
			problem = fmt.Sprintf("is not staged at %q, but at %v", r.StagingTargetPath, v.Staged)
		}
	case *csi.NodeExpandVolumeRequest:
		id = r.VolumeId
		if v := d.get(id); !slices.Contains(v.Staged, r.StagingTargetPath) &&
			!slices.Contains(v.Published, r.VolumePath) {
			problem = "is neither staged nor published there"
		}
	}
	if problem != "" {
		return status.Errorf(codes.FailedPrecondition, "%T: volume %s %s", req, id, problem)
	}
	return nil
}

// inline tells that a request publishes a volume that a pod has in its own specification.
func inline(r *csi.NodePublishVolumeRequest) bool {
	return r.VolumeContext["csi.storage.k8s.io/ephemeral"] == "true" ||
		len(r.VolumeId) > 4 && r.VolumeId[:4] == "csi-" && r.StagingTargetPath == ""
}
