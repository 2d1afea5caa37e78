package devices

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"carob/internal/base/confirm"
	"carob/internal/core/podclaims"
)

// Stored holds the writes of Store.
type Stored struct {
	Claims   []*resourcev1.ResourceClaim // all claims of the pod, as they are now
	extended *resourcev1.ResourceClaim   // among them: the one that was created; nil if none was
	reserved []*resourcev1.ResourceClaim // among them: those that the pod has reserved now
}

// Store writes the allocations of a node, and reserves all claims for the pod (S9.27). After an error, Undo
// reverts the writes up to then.
func (a *Attempt) Store(ctx context.Context, client kubernetes.Interface, node string) (*Stored, error) {
	s := &Stored{}
	f := a.found[node]
	if f == nil {
		return s, fmt.Errorf("claim allocation not found for node")
	}
	for _, c := range a.claims {
		if podclaims.IsReserved(c.object, a.pod) {
			s.Claims = append(s.Claims, c.object)
			continue
		}
		stored, err := a.storeOne(ctx, client, c.object, f.results[c.object.UID])
		if err != nil {
			s.look(ctx, client, c.object, a.pod, err)
			return s, err
		}
		s.Claims, s.reserved = append(s.Claims, stored), append(s.reserved, stored)
	}
	if f.extended == nil {
		return s, nil
	}
	wanted := f.extended.DeepCopy()
	wanted.UID = ""
	made, err := client.ResourceV1().ResourceClaims(a.pod.Namespace).Create(ctx, wanted, metav1.CreateOptions{})
	if err != nil {
		return s, fmt.Errorf("create claim for extended resources: %w", err)
	}
	s.extended = made
	stored, err := a.storeOne(ctx, client, made, f.results[unnamed])
	if err != nil {
		s.look(ctx, client, made, a.pod, err)
		return s, err
	}
	s.extended, s.Claims = stored, append(s.Claims, stored)
	return s, a.storeMappings(ctx, client, stored.Name, f.mappings)
}

// look adds a claim as it is stored after a write whose response was lost: it may have its devices, which no other pod
// may get although the watch does not show them yet. It returns when the claim was read, or ctx ends.
func (s *Stored) look(ctx context.Context, client kubernetes.Interface, c *resourcev1.ResourceClaim, pod *corev1.Pod,
	err error) {
	if !unclear(err) {
		return
	}
	_ = wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		return s.lookOnce(ctx, client, c, pod), nil
	})
}

// lookOnce reports whether the claim was read, or is gone.
func (s *Stored) lookOnce(ctx context.Context, client kubernetes.Interface, c *resourcev1.ResourceClaim,
	pod *corev1.Pod) bool {
	live, err := client.ResourceV1().ResourceClaims(c.Namespace).Get(ctx, c.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && live.UID != c.UID:
		return true
	case err != nil:
		return false
	}
	s.Claims = append(s.Claims, live)
	if podclaims.IsReserved(live, pod) {
		s.reserved = append(s.reserved, live)
	}
	return true
}

// unclear reports whether a write may have taken effect although it failed.
func unclear(err error) bool {
	if errors.Is(err, podclaims.ErrDeleted) || errors.Is(err, podclaims.ErrAllocated) ||
		errors.Is(err, podclaims.ErrDeallocated) {
		return false
	}
	return confirm.Unclear(err)
}

// storeOne writes one claim; a conflict is resolved with a fresh read.
func (a *Attempt) storeOne(ctx context.Context, client kubernetes.Interface, c *resourcev1.ResourceClaim,
	result *resourcev1.AllocationResult) (*resourcev1.ResourceClaim, error) {
	api := client.ResourceV1().ResourceClaims(c.Namespace)
	name := nameOf(c)
	fresh := true
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if !fresh {
			got, err := api.Get(ctx, name.Name, metav1.GetOptions{})
			if err != nil {
				return fmt.Errorf("get updated claim %s after conflict: %w", name, err)
			}
			if got.UID != c.UID {
				return fmt.Errorf("claim %s got deleted in the meantime", name)
			}
			c = got
		}
		fresh = false
		w, err := podclaims.Allocate(c, a.pod, result, time.Now())
		if err != nil {
			return fmt.Errorf("claim %s %w", name, err)
		}
		c = c.DeepCopy()
		if w.Finalizer {
			c.Finalizers = append(c.Finalizers, resourcev1.Finalizer)
			updated, err := api.Update(ctx, c, metav1.UpdateOptions{})
			if err != nil {
				return fmt.Errorf("add finalizer to claim %s: %w", name, err)
			}
			c = updated.DeepCopy()
		}
		c.Status.Allocation, c.Status.ReservedFor = w.Status.Allocation, w.Status.ReservedFor
		updated, err := api.UpdateStatus(ctx, c, metav1.UpdateOptions{})
		if err != nil {
			return fmt.Errorf("add reservation to claim %s: %w", name, err)
		}
		c = updated
		return nil
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// storeMappings writes which request serves which container (S9.61).
func (a *Attempt) storeMappings(ctx context.Context, client kubernetes.Interface, claim string,
	mappings []corev1.ContainerExtendedResourceRequest) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": a.pod.UID},
		"status": map[string]any{"extendedResourceClaimStatus": corev1.PodExtendedResourceClaimStatus{
			ResourceClaimName: claim, RequestMappings: mappings}},
	})
	if err != nil {
		return fmt.Errorf("encode the extended resources of pod %s: %w", nameOf(a.pod), err)
	}
	_, err = client.CoreV1().Pods(a.pod.Namespace).Patch(ctx, a.pod.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("update pod %s ExtendedResourceClaimStatus: %w", nameOf(a.pod), err)
	}
	return nil
}

// Undo removes the reservations that Store added, and deletes the claim that it created. Allocations stay: the
// next attempt uses them, or frees them.
func (a *Attempt) Undo(ctx context.Context, client kubernetes.Interface, s *Stored) error {
	for _, c := range s.reserved {
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"uid": c.UID},
			"status": map[string]any{"reservedFor": []any{
				map[string]any{"$patch": "delete", "uid": a.pod.UID}}},
		})
		if err != nil {
			return fmt.Errorf("encode a reservation: %w", err)
		}
		api := client.ResourceV1().ResourceClaims(c.Namespace)
		_, err = api.Patch(ctx, c.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		if err = confirm.Removed(ctx, c.UID, err, confirm.By(api.Get, c.Name)); err != nil {
			return fmt.Errorf("remove the reservation of claim %s: %w", nameOf(c), err)
		}
	}
	if s.extended == nil {
		return nil
	}
	return Delete(ctx, client, s.extended)
}

// Delete removes a claim that was created for extended resources.
func Delete(ctx context.Context, client kubernetes.Interface, c *resourcev1.ResourceClaim) error {
	api := client.ResourceV1().ResourceClaims(c.Namespace)
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		got, err := api.Get(ctx, c.Name, metav1.GetOptions{})
		if err != nil || got.UID != c.UID || !slices.Contains(got.Finalizers, resourcev1.Finalizer) {
			return err
		}
		got = got.DeepCopy()
		got.Finalizers = slices.DeleteFunc(got.Finalizers, func(f string) bool { return f == resourcev1.Finalizer })
		_, err = api.Update(ctx, got, metav1.UpdateOptions{})
		return err
	})
	if err == nil {
		err = api.Delete(ctx, c.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(c.UID))})
	}
	if err = confirm.Ended(ctx, c.UID, err, confirm.By(api.Get, c.Name)); err != nil {
		return fmt.Errorf("delete claim %s for extended resources: %w", nameOf(c), err)
	}
	return nil
}

// Deallocate frees the devices of a claim that no pod uses (S9.29).
func Deallocate(ctx context.Context, client kubernetes.Interface, c *resourcev1.ResourceClaim) error {
	c = c.DeepCopy()
	c.Status = resourcev1.ResourceClaimStatus{}
	if _, err := client.ResourceV1().ResourceClaims(c.Namespace).UpdateStatus(ctx, c,
		metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("deallocate claim %s: %w", nameOf(c), err)
	}
	return nil
}

// Current returns the stored claims that the watches may still show: one that was known and is not known any more, or
// whose name another claim has, is deleted meanwhile. The claim that Store created may not have been shown yet.
func (s *Stored) Current(x *Index) []*resourcev1.ResourceClaim {
	var out []*resourcev1.ResourceClaim
	for _, c := range s.Claims {
		known := x.claims[nameOf(c)]
		if known != nil && known.UID == c.UID || known == nil && s.extended != nil && s.extended.UID == c.UID {
			out = append(out, c)
		}
	}
	return out
}

// Ready reports whether all devices of a pod may be used (S9.28), and the deadline of the wait for the others.
func (s *Stored) Ready(x *Index, now time.Time, limit time.Duration) (ready bool, until time.Time, err error) {
	ready = true
	for _, old := range s.Claims {
		c := x.claims[nameOf(old)]
		if c == nil || c.UID != old.UID {
			return false, until, fmt.Errorf("claim %s got deleted in the meantime", nameOf(old))
		}
		if c.Status.Allocation == nil {
			return false, until, fmt.Errorf("claim %s %w", nameOf(old), podclaims.ErrDeallocated)
		}
		ok, err := podclaims.Ready(c, now, limit)
		if err != nil {
			return false, until, err
		}
		if ok {
			continue
		}
		ready = false
		if by := podclaims.BindBy(c, limit); !by.IsZero() && (until.IsZero() || by.Before(until)) {
			until = by
		}
	}
	return ready, until, nil
}
