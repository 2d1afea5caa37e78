package app

import (
	"context"
	"fmt"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"carob/internal/controllers/localpath"
	"carob/internal/core/volume"
	"carob/internal/node/localdisk"
)

// classRetry is the wait after a failed attempt to store the built-in classes.
const classRetry = time.Second

// localDisk returns where the volumes of the built-in local class are stored, and starts the
// part that stores the class; nil without that class.
func (c *carob) localDisk(ctx context.Context, api kubernetes.Interface) (localpath.Disk, error) {
	if len(c.in.LocalStorage) == 0 {
		return nil, nil
	}
	disk, err := localdisk.New(c.in.LocalStorage...)
	if err != nil {
		return nil, err
	}
	c.parts.start(ctx, "storage classes", func(ctx context.Context) error {
		for {
			err := storeClasses(ctx, api)
			if err == nil {
				<-ctx.Done()
				return nil
			}
			klog.FromContext(ctx).Error(err, "Storing the built-in storage classes failed; trying again")
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(classRetry):
			}
		}
	})
	return disk, nil
}

// storeClasses creates the built-in classes that are missing. The first becomes the default
// unless there is one. It never changes an existing class: users may edit it.
func storeClasses(ctx context.Context, api kubernetes.Interface) error {
	classes := api.StorageV1().StorageClasses()
	list, err := classes.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the storage classes: %w", err)
	}
	there := make([]*storagev1.StorageClass, 0, len(list.Items))
	names := map[string]bool{}
	for i := range list.Items {
		there = append(there, &list.Items[i])
		names[list.Items[i].Name] = true
	}
	for _, class := range volume.LocalClasses() {
		if names[class.Name] {
			continue
		}
		if volume.PickDefault(there) != nil {
			delete(class.Annotations, volume.DefaultClass)
		}
		if _, err := classes.Create(ctx, class, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create storage class %s: %w", class.Name, err)
		}
	}
	return nil
}
