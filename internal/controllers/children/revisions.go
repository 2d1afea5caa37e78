package children

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/base/confirm"
	"carob/internal/controllers/source"
)

// RevisionChange is the Change of ControllerRevisions, which a watch shows.
func (k *Keeper) RevisionChange(namespace string, revisions *source.Watch,
	live func(context.Context) (metav1.Object, error)) Change[*appsv1.ControllerRevision] {
	return Change[*appsv1.ControllerRevision]{Watch: revisions, Live: live,
		Patch: func(ctx context.Context, name string, patch []byte) (*appsv1.ControllerRevision, error) {
			return k.Client.AppsV1().ControllerRevisions(namespace).Patch(ctx, name, types.StrategicMergePatchType,
				patch, metav1.PatchOptions{})
		}}
}

// DeleteRevisions deletes ControllerRevisions of an owner.
func (k *Keeper) DeleteRevisions(ctx context.Context, o Owner, watch *source.Watch,
	revisions []*appsv1.ControllerRevision) error {
	for _, r := range revisions {
		api := k.Client.AppsV1().ControllerRevisions(r.Namespace)
		err := api.Delete(ctx, r.Name,
			metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(r.UID))})
		if err = k.Gone(ctx, o.Key, watch, r, err, confirm.By(api.Get, r.Name)); err != nil {
			return fmt.Errorf("delete revision %s: %w", r.Name, err)
		}
	}
	return nil
}
