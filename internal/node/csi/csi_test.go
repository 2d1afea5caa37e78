package csi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"carob/internal/base/securepath"
	"carob/internal/core/volume"
	"carob/test/csidriver"
)

// The directories that pods of drivers mount as host paths of type Directory are there before any driver. Where they
// cannot be made, the manager works without them.
func TestDirectories(t *testing.T) {
	root := filepath.Join(t.TempDir(), "kubelet")
	if _, err := New(Config{Root: root, Node: "n1", Client: fake.NewClientset()}); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"pods", "plugins"} {
		if info, err := os.Stat(filepath.Join(root, dir)); err != nil || !info.IsDir() {
			t.Errorf("%s: %v, %v", dir, info, err)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Config{Root: file, Node: "n1", Client: fake.NewClientset()}); err != nil {
		t.Error(err)
	}
}

// The node information of a driver is validated before it becomes labels.
func TestHostileNodeInfo(t *testing.T) {
	w := newWorld(t, csidriver.Config{})
	d, err := w.Manager.registered(driverOfTests)
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []*csiapi.NodeGetInfoResponse{{}, {NodeId: strings.Repeat("x", 257)}, {NodeId: "\xff"},
		{NodeId: "n", AccessibleTopology: &csiapi.Topology{Segments: map[string]string{"a/b/c": "x"}}},
		{NodeId: "n", AccessibleTopology: &csiapi.Topology{Segments: map[string]string{"zone": "a b"}}}} {
		invalid := *d
		invalid.node = answers{d.node, bad}
		if info, err := w.nodeInfo(t.Context(), &invalid); err == nil {
			t.Errorf("%v became %+v", bad, info)
		}
	}
	invalid := *d
	invalid.node = answers{d.node, &csiapi.NodeGetInfoResponse{NodeId: "n", MaxVolumesPerNode: 1 << 40}}
	if info, err := w.nodeInfo(t.Context(), &invalid); err != nil || *info.limit != 1<<31-1 {
		t.Errorf("limit %v, %v", info.limit, err)
	}
}

func TestSetUp(t *testing.T) {
	w := newWorld(
		t,
		csidriver.Config{},
		unattached(func(s *storagev1.CSIDriverSpec) { s.PodInfoOnMount = new(true) }),
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "ns"},
			Data:       map[string][]byte{"k": []byte("v")},
		},
	)
	one, two := w.request("u1", "pv", false), w.request("u2", "pv", false)
	for _, r := range []Request{one, two} {
		r.PV.Spec.CSI.NodeStageSecretRef = &corev1.SecretReference{Namespace: "ns", Name: "s"}
		r.PV.Spec.CSI.NodePublishSecretRef = r.PV.Spec.CSI.NodeStageSecretRef
	}
	ready, err := w.SetUp(t.Context(), one)
	if err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(w.root, "pods/u1/volumes/kubernetes.io~csi/pv/mount")
	if ready.Path != target || ready.ReadOnly || ready.GivesGroup || !securepath.IsMounted(target) {
		t.Fatalf("%+v", ready)
	}
	data, h, err := readRecord(filepath.Dir(target))
	if err != nil || h != (volume.Handle{Driver: driverOfTests, ID: "pv-handle"}) || data[keySpec] != "pv" ||
		data[keyNode] != "n1" || data[keyMode] != "Persistent" || data[keyAttachment] != h.AttachmentName("n1") {
		t.Fatalf("record %v, %v", data, err)
	}
	two.ReadOnly = true
	if _, err := w.SetUp(t.Context(), two); err != nil {
		t.Fatal(err)
	}
	if got := w.driver.Names(); got != "NodeStageVolume NodePublishVolume NodePublishVolume" {
		t.Fatal(got)
	}
	calls := w.driver.Calls()
	stage := calls[0].Request.(*csiapi.NodeStageVolumeRequest)
	publish := calls[1].Request.(*csiapi.NodePublishVolumeRequest)
	mount := publish.VolumeCapability.GetMount()
	if stage.Secrets["k"] != "v" || stage.VolumeContext["color"] != "red" || len(stage.VolumeContext) != 1 ||
		stage.StagingTargetPath != publish.StagingTargetPath || publish.TargetPath != target ||
		publish.Secrets["k"] != "v" ||
		mount.FsType != "ext4" || !slices.Equal(mount.MountFlags, []string{"noatime"}) || publish.Readonly ||
		publish.VolumeCapability.AccessMode.Mode != csiapi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER ||
		publish.VolumeContext["csi.storage.k8s.io/pod.name"] != "p-u1" ||
		publish.VolumeContext["csi.storage.k8s.io/ephemeral"] != "false" ||
		publish.VolumeContext["color"] != "red" || !calls[2].Request.(*csiapi.NodePublishVolumeRequest).Readonly {
		t.Fatalf("stage %v\npublish %v", stage, publish)
	}
	if one.PV.Spec.CSI.VolumeAttributes["csi.storage.k8s.io/pod.name"] != "" {
		t.Fatal("the volume of the API was changed")
	}
	if s := w.VolumeStats(); len(s) != 2 || s[0].Capacity <= 0 || s[0].Claim != "claim-pv" || s[0].Inodes <= 0 {
		t.Fatalf("figures %+v", s)
	}
	// The first pod's end leaves the other's.
	if err := w.Release(t.Context(), "u1"); err != nil {
		t.Fatal(err)
	}
	if w.Held("u1") || !w.Held("u2") || w.driver.Staged() != 1 {
		t.Fatalf("held %v %v, staged %d", w.Held("u1"), w.Held("u2"), w.driver.Staged())
	}
	if err := w.Release(t.Context(), "u2"); err != nil {
		t.Fatal(err)
	}
	w.nothingLeft()
	if got := w.driver.Names("NodeUnpublishVolume", "NodeUnstageVolume"); got !=
		"NodeUnpublishVolume NodeUnpublishVolume NodeUnstageVolume" {
		t.Fatal(got)
	}
	if err := errors.Join(w.Release(t.Context(), "u2"), w.Release(t.Context(), "nobody")); err != nil {
		t.Fatal(err)
	}
}

// A pod waits until the Node object lists a volume as in use and attached, at any later time.
func TestAttached(t *testing.T) {
	w := newWorld(t, csidriver.Config{})
	r := w.request("u1", "pv", false)
	h := volume.Handle{Driver: driverOfTests, ID: "pv-handle"}
	done := make(chan error, 1)
	go func() {
		_, err := w.SetUp(context.Background(), r)
		done <- err
	}()
	w.until(
		"it is in use",
		func() bool { return slices.Equal(w.InUse(nil), []corev1.UniqueVolumeName{h.UniqueName()}) },
	)
	_, err := w.client.StorageV1().VolumeAttachments().Create(t.Context(), &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{
			Name: h.AttachmentName("n1"),
		}, Status: storagev1.VolumeAttachmentStatus{Attached: true,
			AttachmentMetadata: map[string]string{"lun": "3"}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	see := func(change func(*corev1.NodeStatus)) {
		w.mu.Lock()
		w.node = w.node.DeepCopy()
		change(&w.node.Status)
		w.mu.Unlock()
		w.NodeSeen()
	}
	see(func(s *corev1.NodeStatus) { s.VolumesAttached = []corev1.AttachedVolume{{Name: h.UniqueName()}} })
	if n := w.driver.Names(); n != "" { // not yet reported as used: it may be detached
		t.Fatalf("used before the node said so: %s", n)
	}
	see(func(s *corev1.NodeStatus) { s.VolumesInUse = []corev1.UniqueVolumeName{h.UniqueName()} })
	see(func(*corev1.NodeStatus) {}) // twice
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(patience):
		t.Fatal("still waiting")
	}
	for _, c := range w.driver.Calls() {
		if p, ok := c.Request.(interface{ GetPublishContext() map[string]string }); !ok ||
			p.GetPublishContext()["lun"] != "3" {
			t.Errorf("%s without what the driver said when it attached: %v", c.Method, c.Request)
		}
	}
	// After a restart it stays in use only if the Node object lists it.
	w.kill()
	if n := w.InUse([]corev1.UniqueVolumeName{h.UniqueName()}); len(n) != 1 {
		t.Fatalf("in use after a restart: %v", n)
	}
	if err := w.Release(t.Context(), "u1"); err != nil {
		t.Fatal(err)
	}
	w.until("it is unstaged", func() bool { return len(w.InUse([]corev1.UniqueVolumeName{h.UniqueName()})) == 0 })
	w.nothingLeft()
	// Never attached: the wait can be cancelled.
	ctx, cancel := context.WithCancel(t.Context())
	see(func(s *corev1.NodeStatus) { s.VolumesAttached = nil })
	go func() {
		_, err := w.SetUp(ctx, r)
		done <- err
	}()
	w.until("it is in use again", func() bool { return len(w.InUse(nil)) == 1 })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if err := w.Release(t.Context(), "u1"); err != nil {
		t.Fatal(err)
	}
	if n := w.InUse(nil); len(n) != 0 {
		t.Fatalf("still in use: %v", n)
	}
}

// A volume that was not attached in time, because its driver reports that the node is full, is another error than one
// that is only late; the driver is called for its limit at once (S4.63).
func TestNodeIsFull(t *testing.T) {
	for _, tc := range []struct {
		name   string
		period *int64
		err    *storagev1.VolumeError
		full   bool
	}{
		{"no answer", new(int64(3600)), nil, false},
		{"another error", new(int64(3600)), &storagev1.VolumeError{ErrorCode: new(int32(codes.Internal))}, false},
		{"no code", new(int64(3600)), &storagev1.VolumeError{Message: "ResourceExhausted"}, false},
		{"no period", nil, &storagev1.VolumeError{ErrorCode: new(int32(codes.ResourceExhausted))}, false},
		{"full", new(int64(3600)), &storagev1.VolumeError{ErrorCode: new(int32(codes.ResourceExhausted))}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := volume.Handle{Driver: driverOfTests, ID: "pv-handle"}
			w := newWorld(t, csidriver.Config{Limit: 7}, unattached(func(s *storagev1.CSIDriverSpec) {
				s.AttachRequired, s.NodeAllocatableUpdatePeriodSeconds = new(true), tc.period
			}), &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: h.AttachmentName("n1")},
				Status: storagev1.VolumeAttachmentStatus{AttachError: tc.err}})
			u, err := newUse(w.request("u1", "pv", false))
			if err != nil {
				t.Fatal(err)
			}
			if u.rules, err = w.rules(t.Context(), driverOfTests); err != nil {
				t.Fatal(err)
			}
			before := len(w.driver.Calls("NodeGetInfo"))
			err = w.notAttached(t.Context(), u)
			if _, full := errors.AsType[*FullError](err); full != tc.full || !errors.Is(err, ErrNotAttached) {
				t.Errorf("got %v", err)
			}
			if called := len(w.driver.Calls("NodeGetInfo")) > before; called != tc.full {
				t.Errorf("limit requested: %t", called)
			}
		})
	}
}

// The agent is killed before and after each call of the driver: the pod is set up again, or goes, and nothing is left.
func TestKilledAtEachStep(t *testing.T) {
	for _, block := range []bool{false, true} {
		for _, method := range []string{"NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"} {
			for _, after := range []bool{false, true} {
				for _, comesBack := range []bool{false, true} {
					name := fmt.Sprintf("%s/block=%t/after=%t/again=%t", method, block, after, comesBack)
					t.Run(name, func(t *testing.T) {
						t.Parallel()
						killAt(t, block, method, after, comesBack)
					})
				}
			}
		}
	}
}

func killAt(t *testing.T, block bool, method string, after, comesBack bool) {
	w := newWorld(t, csidriver.Config{}, unattached(nil))
	r := w.request("u1", "pv", block)
	reached := make(chan struct{})
	var once sync.Once
	hang := func(ctx context.Context, m string, _ any) error {
		if m != method {
			return nil
		}
		once.Do(func() { close(reached) })
		<-ctx.Done() // the agent dies meanwhile
		return status.FromContextError(ctx.Err()).Err()
	}
	if after {
		w.driver.After(hang)
	} else {
		w.driver.Fault(hang)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if _, err := w.SetUp(ctx, r); err == nil {
			_ = w.Release(ctx, "u1")
		}
	}()
	select {
	case <-reached:
	case <-time.After(patience):
		t.Fatal("not reached")
	}
	cancel()
	<-done
	w.driver.Fault(nil)
	w.driver.After(nil)
	w.kill()
	if comesBack {
		if _, err := w.SetUp(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	for _, uid := range w.Pods() {
		if err := w.Release(t.Context(), uid); err != nil {
			t.Fatal(err)
		}
	}
	w.nothingLeft()
}

// A driver that hangs on one volume does not delay other volumes.
func TestDriverThatHangsDelaysNoOtherVolume(t *testing.T) {
	w := newWorld(t, csidriver.Config{}, unattached(nil))
	reached := make(chan struct{}, 16)
	w.driver.Fault(func(ctx context.Context, method string, req any) error {
		if s, ok := req.(*csiapi.NodeStageVolumeRequest); ok && s.VolumeId == "slow-handle" {
			reached <- struct{}{}
			<-ctx.Done()
			return status.Error(codes.DeadlineExceeded, "too late")
		}
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	for _, uid := range []string{"u1", "u2"} { // the second waits for the first
		go func() {
			_, err := w.SetUp(ctx, w.request(uid, "slow", false))
			done <- err
		}()
	}
	<-reached
	if _, err := w.SetUp(t.Context(), w.request("u3", "quick", false)); err != nil {
		t.Fatal(err)
	}
	if err := w.Release(t.Context(), "u3"); err != nil {
		t.Fatal(err)
	}
	cancel()
	for range 2 {
		if err := <-done; err == nil {
			t.Fatal("no error")
		}
	}
	w.driver.Fault(nil)
	if err := errors.Join(w.Release(t.Context(), "u1"), w.Release(t.Context(), "u2")); err != nil {
		t.Fatal(err)
	}
	w.nothingLeft()
}

// What a driver answers decides what is left for later (S4.59).
func TestErrors(t *testing.T) {
	for _, method := range []string{"NodeStageVolume", "NodePublishVolume"} {
		for code, kept := range map[codes.Code]bool{codes.NotFound: false, codes.InvalidArgument: false,
			codes.Internal: false, codes.Unavailable: true, codes.Aborted: true, codes.DeadlineExceeded: true} {
			t.Run(method+"/"+code.String(), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, csidriver.Config{}, unattached(nil))
				w.driver.Fault(func(_ context.Context, m string, _ any) error {
					if m == method {
						return status.Error(code, "no")
					}
					return nil
				})
				r := w.request("u1", "pv", false)
				_, err := w.SetUp(t.Context(), r)
				if s, ok := errors.AsType[*StepError](err); !ok || status.Code(s.Err) != code {
					t.Fatalf("%v", err)
				}
				record := filepath.Join(w.root, "pods/u1/volumes/kubernetes.io~csi/pv", recordName)
				if method == "NodeStageVolume" {
					record = filepath.Join(w.root, "plugins/kubernetes.io/csi", driverOfTests,
						volume.Handle{ID: "pv-handle"}.Hash(), recordName)
				}
				if _, err := os.Stat(record); (err == nil) != kept {
					t.Fatalf("the record: %v, want it kept: %t", err, kept)
				}
				w.driver.Fault(nil)
				if _, err := w.SetUp(t.Context(), r); err != nil {
					t.Fatal(err)
				}
				if err := w.Release(t.Context(), "u1"); err != nil {
					t.Fatal(err)
				}
				w.nothingLeft()
			})
		}
	}
}

func TestEphemeral(t *testing.T) {
	w := newWorld(t, csidriver.Config{}, unattached(func(s *storagev1.CSIDriverSpec) {
		s.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral}
		s.PodInfoOnMount, s.ServiceAccountTokenInSecrets = new(true), new(true)
		s.TokenRequests = []storagev1.TokenRequest{{Audience: ""}, {Audience: "vault"}}
		s.FSGroupPolicy = new(storagev1.FileFSGroupPolicy)
	}))
	pod := podOf("u1")
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(2000))}
	r := Request{Pod: pod, Volume: &corev1.Volume{Name: "scratch", VolumeSource: corev1.VolumeSource{
		CSI: &corev1.CSIVolumeSource{Driver: driverOfTests, VolumeAttributes: map[string]string{"size": "1"}}}}}
	ready, err := w.SetUp(t.Context(), r)
	if err != nil || !ready.GivesGroup {
		t.Fatalf("%+v, %v", ready, err)
	}
	if got := w.driver.Names(); got != "NodePublishVolume" {
		t.Fatal(got)
	}
	p := w.driver.Calls()[0].Request.(*csiapi.NodePublishVolumeRequest)
	if !strings.HasPrefix(p.VolumeId, "csi-") || p.StagingTargetPath != "" || p.VolumeContext["size"] != "1" ||
		p.VolumeContext["csi.storage.k8s.io/ephemeral"] != "true" || p.VolumeContext[tokensKey] != "" ||
		!strings.Contains(p.Secrets[tokensKey], "token of robot for vault") {
		t.Fatalf("%v", p)
	}
	w.kill()
	if err := w.Release(t.Context(), "u1"); err != nil {
		t.Fatal(err)
	}
	w.nothingLeft()
	if _, err := w.SetUp(t.Context(), w.request("u2", "pv", false)); err == nil ||
		!strings.Contains(err.Error(), `volume mode "Persistent" not supported by driver test.carob.dev`) {
		t.Fatalf("a persistent volume: %v", err)
	}
}

func TestBlock(t *testing.T) {
	w := newWorld(t, csidriver.Config{}, unattached(nil))
	ready, err := w.SetUp(t.Context(), w.request("u1", "raw", true))
	if err != nil || !strings.HasPrefix(ready.Device, w.root) {
		t.Fatalf("%+v, %v", ready, err)
	}
	link, err := os.Readlink(filepath.Join(w.root, "pods/u1/volumeDevices/kubernetes.io~csi/raw"))
	if err != nil || link != filepath.Join(w.root, "plugins/kubernetes.io/csi/volumeDevices/publish/raw/u1") {
		t.Fatalf("link %s, %v", link, err)
	}
	if _, err := w.SetUp(t.Context(), w.request("u1", "raw", true)); err != nil {
		t.Fatal(err)
	}
	// Recorded once, also if it is set up repeatedly.
	if want := []string{fmt.Sprintf("SuccessfulMountVolume: MapVolume.MapPodDevice succeeded for volume \"raw\" "+
		"volumeMapPath %q", filepath.Join(w.root, "pods/u1/volumeDevices/kubernetes.io~csi"))}; !slices.Equal(
		w.reported(), want) {
		t.Errorf("events %q, want %q", w.reported(), want)
	}
	if err := w.Release(t.Context(), "u1"); err != nil {
		t.Fatal(err)
	}
	w.nothingLeft()
	// A hostile driver publishes a file.
	w.driver.Fault(func(_ context.Context, method string, req any) error {
		if p, ok := req.(*csiapi.NodePublishVolumeRequest); ok {
			p.VolumeCapability = &csiapi.VolumeCapability{}
		}
		return nil
	})
	if _, err := w.SetUp(t.Context(), w.request("u2", "raw", true)); err == nil {
		t.Fatal("a file was taken for a block device")
	}
	if n := len(w.reported()); n != 1 {
		t.Errorf("a failure is told as success: %q", w.reported())
	}
}

func TestExpand(t *testing.T) {
	w := newWorld(t, csidriver.Config{}, unattached(nil))
	r := w.request("u1", "pv", false)
	claims := w.client.CoreV1().PersistentVolumeClaims("ns")
	grow := func(to string) {
		size := resource.MustParse(to)
		r.PV = r.PV.DeepCopy()
		r.PV.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: size}
		c := r.Claim.DeepCopy()
		c.Status.AllocatedResources = r.PV.Spec.Capacity
		c.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{
			corev1.ResourceStorage: corev1.PersistentVolumeClaimNodeResizePending}
		c.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{
			Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: corev1.ConditionTrue}}
		r.Claim = c
		_ = w.client.Tracker().Add(r.PV)
		if _, err := claims.Create(t.Context(), c, metav1.CreateOptions{}); err != nil {
			if _, err := claims.UpdateStatus(t.Context(), c, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			_, err := w.client.CoreV1().PersistentVolumes().Update(t.Context(), r.PV, metav1.UpdateOptions{})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	claim := func() *corev1.PersistentVolumeClaim {
		c, err := claims.Get(t.Context(), r.Claim.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	grow("2Gi")
	if _, err := w.SetUp(t.Context(), r); err != nil { // while the pod starts
		t.Fatal(err)
	}
	c := claim()
	if q := c.Status.Capacity[corev1.ResourceStorage]; q.String() != "2Gi" || len(c.Status.Conditions) > 0 ||
		len(c.Status.AllocatedResourceStatuses) > 0 {
		t.Fatalf("%+v", c.Status)
	}
	// The driver can't enlarge it while it is used: the claim shows it, and the node does not try again.
	r.Claim = c
	grow("3Gi")
	w.driver.Fault(func(_ context.Context, m string, _ any) error {
		if m == "NodeExpandVolume" {
			return status.Error(codes.OutOfRange, "too large")
		}
		return nil
	})
	look := func() {
		w.Manager.mu.Lock()
		tg := w.targets[targetKey{"u1", "pv"}]
		u := tg.use
		w.Manager.mu.Unlock()
		_ = w.lookOnce(t.Context(), u, tg)
	}
	look()
	look()
	c = claim()
	infeasible := corev1.PersistentVolumeClaimNodeResizeInfeasible
	if s := c.Status.AllocatedResourceStatuses[corev1.ResourceStorage]; s != infeasible ||
		!strings.Contains(fmt.Sprint(c.Status.Conditions), "too large") {
		t.Fatalf("%+v", c.Status)
	}
	if got := w.driver.Names("NodeExpandVolume"); got != "NodeExpandVolume NodeExpandVolume:OutOfRange" {
		t.Fatal(got)
	}
	// The user requests less; the resizer begins anew.
	w.driver.Fault(nil)
	r.Claim = c
	grow("2560Mi")
	look()
	if q := claim().Status.Capacity[corev1.ResourceStorage]; q.String() != "2560Mi" {
		t.Fatalf("%+v", claim().Status)
	}
	e := w.driver.Calls("NodeExpandVolume")[2].Request.(*csiapi.NodeExpandVolumeRequest)
	if e.CapacityRange.RequiredBytes != 2560<<20 || e.VolumePath == "" || e.StagingTargetPath == "" {
		t.Fatalf("%v", e)
	}
}

// A volume is published again while it is used; an error then removes nothing (S4.23).
func TestRepublish(t *testing.T) {
	w := newWorld(
		t,
		csidriver.Config{},
		unattached(func(s *storagev1.CSIDriverSpec) { s.RequiresRepublish = new(true) }),
	)
	r := w.request("u1", "pv", false)
	if err := errors.Join(w.client.Tracker().Add(r.Claim), w.client.Tracker().Add(r.PV)); err != nil {
		t.Fatal(err)
	}
	ready, err := w.SetUp(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	w.driver.Fault(func(_ context.Context, m string, _ any) error {
		if m == "NodePublishVolume" {
			return status.Error(codes.Internal, "not now")
		}
		return nil
	})
	w.Manager.mu.Lock()
	tg := w.targets[targetKey{"u1", "pv"}]
	u := tg.use
	w.Manager.mu.Unlock()
	if err := w.lookOnce(t.Context(), u, tg); err == nil || !securepath.IsMounted(ready.Path) {
		t.Fatalf("%v, mounted: %t", err, securepath.IsMounted(ready.Path))
	}
	w.driver.Fault(nil)
	if err := w.lookOnce(t.Context(), u, tg); err != nil {
		t.Fatal(err)
	}
	if err := w.Release(t.Context(), "u1"); err != nil {
		t.Fatal(err)
	}
	if err := w.lookOnce(t.Context(), u, tg); err != nil || securepath.IsMounted(ready.Path) { // a late look
		t.Fatalf("%v, mounted: %t", err, securepath.IsMounted(ready.Path))
	}
	w.nothingLeft()
}

// Names that lead elsewhere, and invalid records, change nothing.
func TestHostile(t *testing.T) {
	w := newWorld(t, csidriver.Config{}, unattached(nil))
	for _, change := range []func(*Request){
		func(r *Request) { r.PV.Name = ".." },
		func(r *Request) { r.PV.Name = "a/b" },
		func(r *Request) { r.PV.Spec.CSI.Driver = "../../etc" },
		func(r *Request) { r.PV.Spec.CSI.VolumeHandle = "" },
		func(r *Request) { r.PV.Spec.CSI.VolumeHandle = strings.Repeat("x", maxHandle+1) },
		func(r *Request) { r.Pod.UID = ".." },
	} {
		r := w.request("u1", "pv", false)
		change(&r)
		if _, err := w.SetUp(t.Context(), r); err == nil {
			t.Errorf("taken: %+v", r.PV)
		}
	}
	if got := w.driver.Names(); got != "" {
		t.Fatal(got)
	}
	outside := filepath.Join(t.TempDir(), "precious")
	if err := os.WriteFile(outside, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(w.root, "pods/evil/volumes/kubernetes.io~csi/pv")
	if err := errors.Join(os.MkdirAll(dir, 0o750), os.Symlink(outside, filepath.Join(dir, recordName))); err != nil {
		t.Fatal(err)
	}
	w.kill()
	if !w.Held("evil") {
		t.Fatal("a directory without a record is not seen")
	}
	if err := w.Release(t.Context(), "evil"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(outside); err != nil {
		t.Fatal(err)
	}
	w.nothingLeft()
}

// answers is a node service with its own node information.
type answers struct {
	csiapi.NodeClient
	info *csiapi.NodeGetInfoResponse
}

// NodeGetInfo implements csiapi.NodeClient.
func (a answers) NodeGetInfo(context.Context, *csiapi.NodeGetInfoRequest, ...grpc.CallOption) (
	*csiapi.NodeGetInfoResponse, error) {
	return a.info, nil
}
