package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// populator fills the volumes of claims whose data source is a Hello, as hello-populator does: a claim of its own gets
// a volume, a pod writes the file into it, and the volume is given to the claim of the user.
type populator struct {
	client           kubernetes.Interface
	hellos           dynamic.Interface
	namespace, image string // of its claims and pods
}

var hellos = schema.GroupVersionResource{Group: "hello.example.com", Version: "v1alpha1", Resource: "hellos"}

// populate is either the controller or what its pods run.
func populate(ctx context.Context, flags map[string]string) error {
	if flags["mode"] == "populate" {
		return os.WriteFile(flags["file-name"], []byte(flags["file-contents"]+"\n"), 0o644)
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("create a client: %w", err)
	}
	other, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("create a client: %w", err)
	}
	p := &populator{client: client, hellos: other, namespace: flags["namespace"], image: flags["image-name"]}
	for ctx.Err() == nil {
		if err := p.pass(ctx); err != nil {
			log.Print(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	return nil
}

// pass looks at each claim once.
func (p *populator) pass(ctx context.Context) error {
	claims, err := p.client.CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list claims: %w", err)
	}
	var all error
	for i := range claims.Items {
		c := &claims.Items[i]
		ref := c.Spec.DataSourceRef
		if ref == nil || ref.Kind != "Hello" || ref.APIGroup == nil || *ref.APIGroup != hellos.Group {
			continue
		}
		if c.Spec.VolumeName != "" {
			all = errors.Join(all, p.clean(ctx, c))
			continue
		}
		if err := p.fill(ctx, c); err != nil {
			all = errors.Join(all, fmt.Errorf("claim %s/%s: %w", c.Namespace, c.Name, err))
		}
	}
	return all
}

// fill takes the next step for a claim without a volume.
func (p *populator) fill(ctx context.Context, c *corev1.PersistentVolumeClaim) error {
	hello, err := p.hellos.Resource(hellos).Namespace(c.Namespace).Get(ctx, c.Spec.DataSourceRef.Name,
		metav1.GetOptions{})
	if err != nil {
		return err
	}
	own := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "prime-" + string(c.UID)},
		Spec: *c.Spec.DeepCopy()}
	own.Spec.DataSource, own.Spec.DataSourceRef = nil, nil
	claims := p.client.CoreV1().PersistentVolumeClaims(p.namespace)
	if _, err := claims.Create(ctx, own, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	pods := p.client.CoreV1().Pods(p.namespace)
	_, err = pods.Create(ctx, p.pod(c, own.Name, hello), metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	pod, err := pods.Get(ctx, "populate-"+string(c.UID), metav1.GetOptions{})
	if err != nil || pod.Status.Phase != corev1.PodSucceeded {
		return err
	}
	if own, err = claims.Get(ctx, own.Name, metav1.GetOptions{}); err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"claimRef": map[string]any{
		"namespace": c.Namespace, "name": c.Name, "uid": c.UID, "resourceVersion": c.ResourceVersion}}})
	if err != nil {
		return err
	}
	_, err = p.client.CoreV1().PersistentVolumes().Patch(ctx, own.Spec.VolumeName, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{})
	return err
}

func (p *populator) pod(c *corev1.PersistentVolumeClaim, claim string, hello *unstructured.Unstructured) *corev1.Pod {
	name, _, _ := unstructured.NestedString(hello.Object, "spec", "fileName")
	text, _, _ := unstructured.NestedString(hello.Object, "spec", "fileContents")
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "populate-" + string(c.UID)}, Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever,
		Containers: []corev1.Container{{Name: "populate", Image: p.image,
			Args:         []string{"--mode=populate", "--file-name=/mnt/" + name, "--file-contents=" + text},
			VolumeMounts: []corev1.VolumeMount{{Name: "target", MountPath: "/mnt"}}}},
		Volumes: []corev1.Volume{{Name: "target", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}}}
}

// clean deletes what a claim that has its volume does not need any more.
func (p *populator) clean(ctx context.Context, c *corev1.PersistentVolumeClaim) error {
	for _, err := range []error{
		p.client.CoreV1().Pods(p.namespace).Delete(ctx, "populate-"+string(c.UID), metav1.DeleteOptions{}),
		p.client.CoreV1().PersistentVolumeClaims(p.namespace).Delete(ctx, "prime-"+string(c.UID),
			metav1.DeleteOptions{}),
	} {
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}
