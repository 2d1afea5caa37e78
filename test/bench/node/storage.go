package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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

// csi measures from the moment when a volume is attached until the driver has published it for the pod.
func (b *bench) csi(ctx context.Context) error {
	const name = "csi.bench.example.com"
	d, err := csidriver.Start(csidriver.Config{Name: name, Node: nodeName, KubeletDir: b.in.KubeletDir,
		Data: filepath.Join(filepath.Dir(b.in.DataDir), "volumes")})
	if err != nil {
		return err
	}
	defer d.Stop()
	if _, err := b.c.StorageV1().CSIDrivers().Create(ctx, &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSIDriverSpec{AttachRequired: new(true)},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	published, attached := newTimes(), newTimes()
	d.After(func(_ context.Context, _ string, req any) error {
		if r, ok := req.(*csi.NodePublishVolumeRequest); ok {
			published.set(r.VolumeId)
		}
		return nil
	})
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
	attaching, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- d.Attach(attaching, b.in.Kubeconfig) }()
	var took []float64
	for i := range b.n {
		volume := fmt.Sprint("csi-", i)
		err = errors.Join(d.Make(volume, false, 1<<20), b.csiVolume(ctx, volume, name),
			b.claim(ctx, volume, volume, new("")))
		if err != nil {
			break
		}
		if _, err = b.create(ctx, pod(volume, claimVolume(volume))); err != nil {
			break
		}
		took = append(took, ms(published.of(volume).Sub(attached.of(volume))))
		if err = b.remove(ctx); err != nil {
			break
		}
	}
	cancel()
	err = errors.Join(err, <-ended)
	if err == nil {
		b.add("CSI volume attached → published for the pod, p50", "ms", "", median(took))
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
