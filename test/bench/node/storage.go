package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/test/csidriver"
)

// claims measures from the creation of a claim of the default class, and of a pod with it, until the pod is Running.
func (b *bench) claims(ctx context.Context) error {
	var took []float64
	for i := range b.n + 1 {
		name := fmt.Sprint("claim-", i)
		began := time.Now()
		if err := b.claim(ctx, name, "", nil); err != nil {
			return err
		}
		claimed := time.Since(began)
		running, err := b.create(ctx, pod(name, claimVolume(name)))
		if err != nil {
			return err
		}
		if i > 0 { // the first starts the controllers of volumes
			took = append(took, ms(claimed+running))
		}
		if err := b.remove(ctx); err != nil {
			return err
		}
	}
	b.add("claim of the local class created → pod with it Running, p50", "ms", "≤ 40", median(took))
	return b.c.CoreV1().PersistentVolumeClaims(namespace).DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{})
}

func (b *bench) claim(ctx context.Context, name, volume string, class *string) error {
	_, err := b.c.CoreV1().PersistentVolumeClaims(namespace).Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{
			corev1.ReadWriteOnce}, VolumeName: volume, StorageClassName: class,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceStorage: resource.MustParse("1Mi")}}},
	}, metav1.CreateOptions{})
	return err
}

func claimVolume(name string) *corev1.VolumeSource {
	return &corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}
}

// csi measures from the moment when a volume is attached until the driver has published it for the pod, on the nodes of
// all agents in turns.
func (b *bench) csi(ctx context.Context) error {
	defer func(a *agent) { b.agent = a }(b.agent)
	published, attached := newTimes(), newTimes()
	w, err := b.c.StorageV1().VolumeAttachments().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	defer w.Stop()
	go func() {
		for e := range w.ResultChan() {
			if a, ok := e.Object.(*storagev1.VolumeAttachment); ok && a.Status.Attached {
				attached.set(*a.Spec.Source.PersistentVolumeName)
			}
		}
	}()
	drivers := make([]*csidriver.Driver, len(b.agents))
	attaching, cancel := context.WithCancel(ctx)
	ended := make(chan error, len(b.agents))
	for i, a := range b.agents {
		if drivers[i], err = b.driver(ctx, a, driverName(i), published); err != nil {
			break
		}
		defer drivers[i].Stop()
		go func() { ended <- drivers[i].Attach(attaching, b.in.Kubeconfig) }()
	}
	took := make([][]float64, len(b.agents))
	for n := range b.n {
		for i, a := range b.agents {
			if err != nil {
				break
			}
			b.agent = a
			volume := fmt.Sprintf("csi-%d-%d", i, n)
			if err = b.csiPod(ctx, drivers[i], volume, driverName(i)); err == nil {
				took[i] = append(took[i], ms(published.of(volume).Sub(attached.of(volume))))
				err = b.remove(ctx)
			}
		}
	}
	cancel()
	for _, d := range drivers {
		if d != nil {
			err = errors.Join(err, <-ended)
		}
	}
	for i, a := range b.agents {
		if b.agent = a; err == nil {
			b.add("CSI volume attached → published for the pod, p50", "ms", "", median(took[i]))
		}
	}
	return err
}

func driverName(i int) string { return fmt.Sprintf("csi-%d.bench.example.com", i) }

// driver starts a driver, whose volumes have to be attached, on an agent's node.
func (b *bench) driver(ctx context.Context, a *agent, name string, published *times) (*csidriver.Driver, error) {
	d, err := csidriver.Start(csidriver.Config{Name: name, Node: a.node, KubeletDir: a.dir,
		Data: filepath.Join(filepath.Dir(b.in.DataDir), "volumes")})
	if err != nil {
		return nil, err
	}
	d.After(func(_ context.Context, _ string, req any) error {
		if r, ok := req.(*csi.NodePublishVolumeRequest); ok {
			published.set(r.VolumeId)
		}
		return nil
	})
	_, err = b.c.StorageV1().CSIDrivers().Create(ctx, &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSIDriverSpec{AttachRequired: new(true)},
	}, metav1.CreateOptions{})
	if err == nil {
		err = b.registered(ctx, a, name)
	}
	if err != nil {
		d.Stop()
		return nil, err
	}
	return d, nil
}

// registered waits until a node has a driver: a pod before that would wait for its next try.
func (b *bench) registered(ctx context.Context, a *agent, driver string) error {
	return wait(ctx, func() (bool, error) {
		n, err := b.c.StorageV1().CSINodes().Get(ctx, a.node, metav1.GetOptions{})
		if err != nil {
			return false, ignoreNotFound(err)
		}
		has := func(d storagev1.CSINodeDriver) bool { return d.Name == driver }
		return slices.ContainsFunc(n.Spec.Drivers, has), nil
	})
}

// csiPod creates a volume and a pod with it, and waits until the pod is Ready.
func (b *bench) csiPod(ctx context.Context, d *csidriver.Driver, volume, driver string) error {
	err := errors.Join(d.Make(volume, false, 1<<20), b.csiVolume(ctx, volume, driver),
		b.claim(ctx, volume, volume, new("")))
	if err == nil {
		_, err = b.create(ctx, pod(volume, claimVolume(volume)))
	}
	return err
}

// times are when something first happened to volumes.
type times struct {
	mu sync.Mutex
	at map[string]time.Time
}

func newTimes() *times { return &times{at: map[string]time.Time{}} }

func (t *times) set(volume string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.at[volume]; !ok {
		t.at[volume] = time.Now()
	}
}

func (t *times) of(volume string) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.at[volume]
}

func (b *bench) csiVolume(ctx context.Context, name, driver string) error {
	_, err := b.c.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")},
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: driver, VolumeHandle: name}},
		},
	}, metav1.CreateOptions{})
	return err
}

// files measures from the change of a config map until its file in a running pod has the new content.
func (b *bench) files(ctx context.Context) error {
	api := b.c.CoreV1().ConfigMaps(namespace)
	m, err := api.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "file"},
		Data: map[string]string{"key": "0"}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if _, err := b.create(ctx, pod("file", &corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: "file"}}})); err != nil {
		return err
	}
	p, err := b.c.CoreV1().Pods(namespace).Get(ctx, "file", metav1.GetOptions{})
	if err != nil {
		return err
	}
	path := filepath.Join(b.in.DataDir, "node", "volatile", string(p.UID), "data", "key")
	var took []float64
	for i := range b.n {
		m.Data["key"] = fmt.Sprint(i + 1)
		began := time.Now()
		if m, err = api.Update(ctx, m, metav1.UpdateOptions{}); err != nil {
			return err
		}
		for {
			if got, err := os.ReadFile(path); err == nil && string(got) == m.Data["key"] {
				break
			}
			if time.Since(began) > patience {
				return errors.New("the file never changed")
			}
			if err := pause(ctx, 200*time.Microsecond); err != nil {
				return err
			}
		}
		took = append(took, ms(time.Since(began)))
	}
	b.add("config map changed → file in the pod, p50", "ms", "≤ 20", median(took))
	return errors.Join(api.Delete(ctx, "file", metav1.DeleteOptions{}), b.remove(ctx))
}
