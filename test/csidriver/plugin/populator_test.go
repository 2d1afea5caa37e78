package main

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
)

// A claim whose data source is a Hello gets the volume that a pod filled, and what was needed for that goes.
func TestPopulator(t *testing.T) {
	ctx, group := t.Context(), hellos.Group
	user := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "c", UID: "u"},
		Spec: corev1.PersistentVolumeClaimSpec{DataSourceRef: &corev1.TypedObjectReference{APIGroup: &group,
			Kind: "Hello", Name: "h"}}}
	other := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "other", UID: "o"}}
	client := fake.NewClientset(user, other, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}})
	hello := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "hello.example.com/v1alpha1",
		"kind": "Hello", "metadata": map[string]any{"namespace": "n", "name": "h"},
		"spec": map[string]any{"fileName": "f", "fileContents": "hello there"}}}
	source := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{hellos: "HelloList"}, hello)
	p := &populator{client: client, hellos: source, namespace: "own", image: "i"}
	pass := func() {
		t.Helper()
		if err := p.pass(ctx); err != nil {
			t.Fatal(err)
		}
	}
	claims, pods := client.CoreV1().PersistentVolumeClaims("own"), client.CoreV1().Pods("own")
	pass()
	pass()
	own, err := claims.Get(ctx, "prime-u", metav1.GetOptions{})
	if err != nil || own.Spec.DataSourceRef != nil {
		t.Fatal(own, err)
	}
	pod, err := pods.Get(ctx, "populate-u", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	own.Spec.VolumeName, pod.Status.Phase = "pv", corev1.PodSucceeded
	if _, err := claims.Update(ctx, own, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	pass()
	pv, err := client.CoreV1().PersistentVolumes().Get(ctx, "pv", metav1.GetOptions{})
	if err != nil || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != "u" || pv.Spec.ClaimRef.Namespace != "n" {
		t.Fatal(pv, err)
	}
	user.Spec.VolumeName = "pv"
	if _, err := client.CoreV1().PersistentVolumeClaims("n").Update(ctx, user, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	pass()
	left, err := claims.List(ctx, metav1.ListOptions{})
	if err != nil || len(left.Items) > 0 {
		t.Error(left, err)
	}
	if left, err := pods.List(ctx, metav1.ListOptions{}); err != nil || len(left.Items) > 0 {
		t.Error(left, err)
	}
	file := filepath.Join(t.TempDir(), "f")
	flags, err := parse([]string{"--mode=populate", "--file-name=" + file, "--file-contents=hello there"})
	if err != nil {
		t.Fatal(err)
	}
	if err := populate(ctx, flags); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "hello there\n" {
		t.Errorf("%q, %v", text, err)
	}
}
