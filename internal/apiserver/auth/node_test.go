package auth

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/rest"
)

// fakeObjects are stores that count reads.
type fakeObjects struct {
	objs  map[string]runtime.Object // by resource and key
	reads int
}

func (f *fakeObjects) put(resource string, objs ...runtime.Object) {
	if f.objs == nil {
		f.objs = map[string]runtime.Object{}
	}
	for _, o := range objs {
		f.objs[resource+" "+key(o)] = o
	}
}

func (f *fakeObjects) Get(_ context.Context, gr schema.GroupResource, namespace, name string) (runtime.Object, error) {
	f.reads++
	if o, ok := f.objs[gr.Resource+" "+namespace+"/"+name]; ok {
		return o, nil
	}
	return nil, apierrors.NewNotFound(gr, name)
}

func (f *fakeObjects) List(_ context.Context, gr schema.GroupResource, namespace string,
	fn func(runtime.Object) bool) error {
	f.reads++
	for k, o := range f.objs {
		if strings.HasPrefix(k, gr.Resource+" "+namespace) && !fn(o) {
			break
		}
	}
	return nil
}

func podOn(node, name string, change func(*corev1.PodSpec)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: corev1.PodSpec{NodeName: node, ServiceAccountName: name + "-sa"}}
	if change != nil {
		change(&p.Spec)
	}
	return p
}

func withSecret(name string) func(*corev1.PodSpec) {
	return func(s *corev1.PodSpec) {
		s.Volumes = append(s.Volumes,
			corev1.Volume{Name: "s",
				VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}}},
			corev1.Volume{Name: "m",
				VolumeSource: corev1.VolumeSource{
					ConfigMap: &corev1.ConfigMapVolumeSource{
						LocalObjectReference: corev1.LocalObjectReference{Name: name}}}},
			corev1.Volume{Name: "c",
				VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}})
		s.ResourceClaims = []corev1.PodResourceClaim{{Name: "r", ResourceClaimName: new(name)}}
	}
}

func volumeOf(name, claim string) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{NodeStageSecretRef: &corev1.SecretReference{Namespace: "storage",
		Name: name}}
	if claim != "" {
		pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: claim}
	}
	return pv
}

func cluster() *fakeObjects {
	f := &fakeObjects{}
	f.put("pods", podOn("n1", "mine", withSecret("mine")), podOn("n2", "theirs", withSecret("theirs")),
		podOn("", "waits", withSecret("waits")))
	f.put("persistentvolumes", volumeOf("mine", "mine"), volumeOf("theirs", "theirs"), volumeOf("free", ""))
	f.put("volumeattachments", &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "mine"},
		Spec: storagev1.VolumeAttachmentSpec{NodeName: "n1"}},
		&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "theirs"},
			Spec: storagev1.VolumeAttachmentSpec{NodeName: "n2"}})
	f.put("resourceslices", &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "mine"},
		Spec: resourcev1.ResourceSliceSpec{NodeName: new("n1")}},
		&resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "theirs"},
			Spec: resourcev1.ResourceSliceSpec{NodeName: new("n2")}},
		&resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "network"}})
	f.put("podcertificaterequests",
		&certificatesv1.PodCertificateRequest{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "mine"},
			Spec: certificatesv1.PodCertificateRequestSpec{NodeName: "n1"}},
		&certificatesv1.PodCertificateRequest{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "theirs"},
			Spec: certificatesv1.PodCertificateRequestSpec{NodeName: "n2"}})
	return f
}

func agentOf(node string) user.Info {
	return &user.DefaultInfo{Name: "system:node:" + node, Groups: []string{user.NodesGroup, user.AllAuthenticated}}
}

// What upstream's node authorizer allows and rejects (1.37).
func TestNodeRights(t *testing.T) {
	n := NewNode(cluster())
	for _, c := range []struct {
		verbs, what, where, selector string
		want                         bool
	}{
		{"get list watch", "core/secrets configmaps", "ns/mine", "", true},
		{"get list watch", "core/secrets configmaps", "ns/theirs", "", false},
		{"get", "core/secrets configmaps persistentvolumeclaims", "ns/waits", "", false},
		{"get", "core/secrets configmaps", "other/mine", "", false},
		{"list watch", "core/secrets configmaps", "ns/", "", false},
		{"list watch", "core/secrets configmaps pods nodes persistentvolumes", "", "", false},
		{"create update patch delete deletecollection", "core/secrets configmaps", "ns/mine", "", false},
		{"get", "core/secrets", "storage/mine", "", true},
		{"get", "core/secrets", "storage/theirs", "", false},
		{"get", "core/secrets", "storage/free", "", false},
		{"get", "core/persistentvolumes", "/mine", "", true},
		{"get", "core/persistentvolumes", "/theirs", "", false},
		{"get", "core/persistentvolumes", "/free", "", false},
		{"get", "core/persistentvolumes", "/none", "", false},
		{"list watch update", "core/persistentvolumes", "/mine", "", false},
		{"get", "core/persistentvolumeclaims", "ns/mine", "", true},
		{"get", "core/persistentvolumeclaims", "ns/theirs", "", false},
		{"list update", "core/persistentvolumeclaims", "ns/mine", "", false},
		{"update patch", "core/persistentvolumeclaims/status", "ns/mine", "", true},
		{"update patch", "core/persistentvolumeclaims/status", "ns/theirs", "", false},
		{"get", "resource.k8s.io/resourceclaims", "ns/mine", "", true},
		{"get", "resource.k8s.io/resourceclaims", "ns/theirs", "", false},
		{"update", "resource.k8s.io/resourceclaims/status", "ns/mine", "", false},
		{"get", "storage.k8s.io/volumeattachments", "/mine", "", true},
		{"get", "storage.k8s.io/volumeattachments", "/theirs", "", false},
		{"create", "core/serviceaccounts/token", "ns/mine-sa", "", true},
		{"create", "core/serviceaccounts/token", "ns/theirs-sa", "", false},
		{"get", "core/serviceaccounts", "ns/mine-sa", "", true},
		{"get", "core/serviceaccounts", "ns/theirs-sa", "", false},
		{"list create", "core/serviceaccounts", "ns/mine-sa", "", false},
		{"get", "core/pods", "ns/mine", "", true},
		{"get", "core/pods", "ns/theirs", "", false},
		{"get", "core/pods", "ns/waits", "", false},
		{"get", "core/pods", "ns/none", "", false},
		{"list watch", "core/pods", "", "spec.nodeName=n1", true},
		{"list watch", "core/pods", "", "spec.nodeName=n2", false},
		{"list watch", "core/pods", "", "spec.nodeName!=n1", false},
		{"list watch", "core/pods", "ns/mine", "metadata.name=mine", true},
		{"list watch", "core/pods", "ns/theirs", "metadata.name=theirs", false},
		{"create delete", "core/pods", "ns/any", "", true}, // NodeRestriction checks the rest
		{"update patch deletecollection", "core/pods", "ns/mine", "", false},
		{"update patch", "core/pods/status", "ns/mine", "", true},
		{"create", "core/pods/eviction", "ns/mine", "", true},
		{"create get", "core/pods/exec", "ns/mine", "", false},
		{"get list watch", "core/nodes", "/n1", "", true},
		{"get list watch", "core/nodes", "/n2", "", false},
		{"create update patch", "core/nodes", "/n1", "", true},
		{"update patch", "core/nodes/status", "/n1", "", true},
		{"delete deletecollection", "core/nodes", "/n1", "", false},
		{"get", "core/nodes/proxy", "/n1", "", false},
		{"get update patch delete", "coordination.k8s.io/leases", "kube-node-lease/n1", "", true},
		{"create", "coordination.k8s.io/leases", "kube-node-lease/", "", true},
		{"get update patch delete", "coordination.k8s.io/leases", "kube-node-lease/n2", "", false},
		{"list watch", "coordination.k8s.io/leases", "kube-node-lease/n1", "", false},
		{"get update create", "coordination.k8s.io/leases", "kube-system/n1", "", false},
		{"get update patch delete", "storage.k8s.io/csinodes", "/n1", "", true},
		{"create", "storage.k8s.io/csinodes", "/", "", true},
		{"get update patch delete", "storage.k8s.io/csinodes", "/n2", "", false},
		{"list watch", "storage.k8s.io/csinodes", "/n1", "", false},
		{"get update patch", "storage.k8s.io/csinodes/status", "/n1", "", false},
		{"get update", "storage.k8s.io/csinodes/status", "/n2", "", false},
		{"create", "resource.k8s.io/resourceslices", "/", "", true},
		{"get update patch delete", "resource.k8s.io/resourceslices", "/mine", "", true},
		{"get update patch delete", "resource.k8s.io/resourceslices", "/theirs", "", false},
		{"get", "resource.k8s.io/resourceslices", "/network", "", false},
		{"list watch deletecollection", "resource.k8s.io/resourceslices", "", "spec.nodeName=n1", true},
		{"list watch deletecollection", "resource.k8s.io/resourceslices", "", "spec.nodeName=n2", false},
		{"list watch deletecollection", "resource.k8s.io/resourceslices", "", "", false},
		{"create", "certificates.k8s.io/podcertificaterequests", "ns/", "", true},
		{"get", "certificates.k8s.io/podcertificaterequests", "ns/mine", "", true},
		{"get", "certificates.k8s.io/podcertificaterequests", "ns/theirs", "", false},
		{"list watch", "certificates.k8s.io/podcertificaterequests", "", "spec.nodeName=n1", true},
		{"list watch", "certificates.k8s.io/podcertificaterequests", "", "", false},
		{"update", "certificates.k8s.io/podcertificaterequests/status", "ns/mine", "", false},
		{"create get list watch", "certificates.k8s.io/certificatesigningrequests", "/", "", true},
		{"approve", "certificates.k8s.io/signers", "/x", "", false},
		{"get list watch", "core/services", "ns/any", "", true},
		{"create update patch", "core/events", "ns/any", "", true},
		{"get list watch", "node.k8s.io/runtimeclasses", "/any", "", true},
		{"get list watch", "storage.k8s.io/csidrivers", "/any", "", true},
		{"get list watch", "certificates.k8s.io/clustertrustbundles", "/any", "", true},
		{"create", "authentication.k8s.io/tokenreviews", "/", "", true},
		{"create", "authorization.k8s.io/subjectaccessreviews", "/", "", true},
		{"get", "apps/deployments", "ns/any", "", false},
		{"get", "/metrics", "", "", false},
	} {
		group, resources, _ := strings.Cut(c.what, "/")
		for res := range strings.FieldsSeq(resources) {
			for verb := range strings.FieldsSeq(c.verbs) {
				what := group + "/" + res
				a := attributesOf(verb, what, c.where)
				if c.selector != "" {
					a.FieldSelectorRequirements = fields.ParseSelectorOrDie(c.selector).Requirements()
				}
				a.User = agentOf("n1")
				if got, why, err := n.Authorize(t.Context(), a); err != nil ||
					(got == authorizer.DecisionAllow) != c.want || got == authorizer.DecisionDeny {
					t.Errorf("%s %s %s %s: %v (%s), %v", verb, what, c.where, c.selector, got, why, err)
				}
				for _, other := range []user.Info{nil, agentOf(""), &user.DefaultInfo{Name: "system:node:n1"},
					&user.DefaultInfo{Name: "n1", Groups: []string{user.NodesGroup}}} {
					a.User = other
					if got, _, err := n.Authorize(t.Context(), a); got != authorizer.DecisionNoOpinion || err != nil {
						t.Errorf("%v may %s %s %s: %v, %v", other, verb, what, c.where, got, err)
					}
				}
			}
		}
	}
}

// watched is a store of pods with a watch that a test controls.
type watched struct {
	rest.Lister
	list *corev1.PodList
	w    *watch.FakeWatcher
}

func (w watched) List(context.Context, *internalversion.ListOptions) (runtime.Object, error) {
	return w.list, nil
}

func (w watched) Watch(context.Context, *internalversion.ListOptions) (watch.Interface, error) {
	return w.w, nil
}

// A pod that the watch has delivered costs no read of the stores, and one that it has not delivered
// yet is not a reason to reject.
func TestNodeFollowsPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeObjects{}
		n := NewNode(f)
		w := watch.NewFake()
		stored := &corev1.PodList{Items: []corev1.Pod{*podOn("n1", "first", withSecret("first"))}}
		n.SetPods(watched{list: stored, w: w})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); n.Run(ctx) }()
		synctest.Wait()
		may := func(name string, want bool, reads int) {
			t.Helper()
			a := attributesOf("get", "core/secrets", "ns/"+name)
			a.User = agentOf("n1")
			f.reads = 0
			if got, why, err := n.Authorize(ctx, a); err != nil || (got == authorizer.DecisionAllow) != want {
				t.Errorf("%s: %v (%s), %v", name, got, why, err)
			}
			if f.reads != reads {
				t.Errorf("%s: %d reads, want %d", name, f.reads, reads)
			}
		}
		may("first", true, 0)
		may("second", false, 2) // pods, then volumes
		second := podOn("n1", "second", withSecret("second"))
		stored.Items = append(stored.Items, *second)
		may("second", true, 1) // the storage is ahead of the cache
		stored.Items = nil
		f.put("pods", second)
		may("second", true, 1) // the cache is ahead of the watch
		w.Add(second)
		synctest.Wait()
		may("second", true, 0)
		f.objs = nil
		w.Delete(second)
		w.Modify(podOn("n2", "first", withSecret("first")))
		synctest.Wait()
		may("second", false, 2)
		may("first", false, 2)
		cancel()
		<-done
	})
}

func BenchmarkNode(b *testing.B) {
	n := NewNode(&fakeObjects{})
	for i := range 1000 {
		n.graph.Set(podOn("n1", fmt.Sprint("p", i), withSecret(fmt.Sprint("s", i))))
	}
	a := attributesOf("get", "core/secrets", "ns/s500")
	a.User = agentOf("n1")
	for b.Loop() {
		if d, _, err := n.Authorize(b.Context(), a); d != authorizer.DecisionAllow || err != nil {
			b.Fatal(d, err)
		}
	}
}
