package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"carob/internal/core/explain"
)

// mostListed is how many objects of a resource are read.
const mostListed = 50

func (x *explainer) namespaceObject(ctx context.Context) (explain.Lines, error) {
	n, err := x.c.CoreV1().Namespaces().Get(ctx, x.name, metav1.GetOptions{})
	if err != nil {
		return nil, plain(err)
	}
	var c *explain.Contents
	if n.Status.Phase == corev1.NamespaceTerminating {
		c = x.contents(ctx, n.Name)
	}
	return explain.Namespace(n, c, time.Now()), nil
}

// contents lists what remains in a namespace, of each resource whose objects can be deleted. What cannot be listed is
// reported instead.
func (x *explainer) contents(ctx context.Context, namespace string) *explain.Contents {
	c := &explain.Contents{}
	lists, err := discovery.ServerPreferredNamespacedResources(x.c.Discovery())
	if err != nil { // of some groups; those that were found are listed
		c.Unreadable = append(c.Unreadable, plain(err).Error())
	}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			continue // no server has such a version
		}
		for _, r := range list.APIResources {
			if slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "delete") && !isEvents(r) {
				x.remaining(ctx, c, namespace, gv, r.Name)
			}
		}
	}
	return c
}

// isEvents: they hold nothing up, and are many.
func isEvents(r metav1.APIResource) bool { return r.Kind == "Event" }

// remaining adds the objects of one resource.
func (x *explainer) remaining(ctx context.Context, c *explain.Contents, namespace string, gv schema.GroupVersion,
	resource string) {
	path := []string{"/apis", gv.Group, gv.Version, "namespaces", namespace, resource}
	if gv.Group == "" {
		path = []string{"/api", gv.Version, "namespaces", namespace, resource}
	}
	name := strings.TrimSuffix(resource+"."+gv.Group, ".")
	answer := x.c.CoreV1().RESTClient().Get().AbsPath(path...).Param("limit", strconv.Itoa(mostListed)).
		SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").
		WarningHandler(rest.NoWarnings{}). // the user did not choose the versions that are listed
		Do(ctx)
	var list metav1.PartialObjectMetadataList
	err := answer.Error() // with the words of the server, which Raw has not
	if err == nil {
		text, _ := answer.Raw()
		err = json.Unmarshal(text, &list)
	}
	if err != nil {
		c.Unreadable = append(c.Unreadable, fmt.Sprintf("%s: %v", name, plain(err)))
		return
	}
	c.More = c.More || list.Continue != ""
	for i := range list.Items {
		o := &list.Items[i]
		c.Objects = append(c.Objects, explain.Remaining{Resource: name, Name: o.Name, Finalizers: o.Finalizers,
			Deleted: o.DeletionTimestamp != nil})
	}
}
