package csidriver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// Attach does what external-attacher does, as far as volumes of static persistent volumes need it, until ctx ends: it
// has VolumeAttachments of the driver published, and unpublished when they are deleted.
func (d *Driver) Attach(ctx context.Context, kubeconfig string) error {
	rest, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return fmt.Errorf("create a client: %w", err)
	}
	for ctx.Err() == nil {
		// By lists: the API server may be down meanwhile.
		list, err := client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
		if err == nil {
			for i := range list.Items {
				if a := &list.Items[i]; a.Spec.Attacher == d.cfg.Name {
					err = errors.Join(err, d.attach(ctx, client, a))
				}
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil
}

func (d *Driver) attach(ctx context.Context, client kubernetes.Interface, a *storagev1.VolumeAttachment) error {
	api := client.StorageV1().VolumeAttachments()
	finalizer := "external-attacher/" + d.cfg.Name
	pv, err := client.CoreV1().PersistentVolumes().Get(ctx, *a.Spec.Source.PersistentVolumeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	switch {
	case a.DeletionTimestamp != nil:
		_, err = d.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{
			VolumeId: pv.Spec.CSI.VolumeHandle})
		if err == nil {
			_, err = api.Patch(ctx, a.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
				metav1.PatchOptions{})
		}
	case len(a.Finalizers) == 0:
		_, err = api.Patch(ctx, a.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":["`+finalizer+`"]}}`),
			metav1.PatchOptions{})
	case !a.Status.Attached:
		var answer *csi.ControllerPublishVolumeResponse
		answer, err = d.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{
			VolumeId: pv.Spec.CSI.VolumeHandle})
		if err == nil {
			a.Status.Attached, a.Status.AttachmentMetadata = true, answer.PublishContext
			_, err = api.UpdateStatus(ctx, a, metav1.UpdateOptions{})
		}
	}
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
