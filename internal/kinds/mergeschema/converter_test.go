package mergeschema

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// states are successive states of one object, for several kinds.
var states = map[string][]runtime.Object{
	"pod": func() []runtime.Object {
		first := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n", Labels: map[string]string{"a": "b"},
				Finalizers: []string{"x/y"}},
			Spec: corev1.PodSpec{NodeSelector: map[string]string{"k": "v"},
				Tolerations: []corev1.Toleration{{Key: "t"}},
				Volumes: []corev1.Volume{{Name: "v",
					VolumeSource: corev1.VolumeSource{
						EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: new(resource.MustParse("1Gi"))}}}},
				Containers: []corev1.Container{{Name: "c", Image: "i",
					Env:   []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "A", Value: "2"}},
					Ports: []corev1.ContainerPort{{ContainerPort: 80, Protocol: "TCP"}},
					Resources: corev1.ResourceRequirements{
						Requests: corev1.ResourceList{"cpu": resource.MustParse("1500m")}}}}}}
		all := []runtime.Object{first}
		for _, change := range []func(*corev1.Pod){
			func(p *corev1.Pod) { p.Labels["x"] = "y" },
			func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning },
			func(p *corev1.Pod) { p.Spec.Containers[0].Image = "j" },
			func(p *corev1.Pod) { p.Spec.Containers[0].Env[1].Value = "3" },
			func(p *corev1.Pod) { p.Spec.Containers[0].Env = p.Spec.Containers[0].Env[:1] },
			func(p *corev1.Pod) { p.Spec.Tolerations = nil },
			func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{} },
			func(p *corev1.Pod) {
				p.Spec.Containers[0].Resources.Requests["cpu"] = resource.MustParse("1500000u")
			},
			func(p *corev1.Pod) {
				p.Status.Conditions = []corev1.PodCondition{{Type: "Ready", Status: "True",
					LastTransitionTime: metav1.Now()}}
			},
			func(p *corev1.Pod) { p.Status.Conditions[0].Status = "False" },
			func(p *corev1.Pod) { p.Spec.Volumes, p.Finalizers = nil, nil },
			func(p *corev1.Pod) { p.Status = corev1.PodStatus{} },
			func(p *corev1.Pod) {},
		} {
			next := all[len(all)-1].DeepCopyObject().(*corev1.Pod)
			change(next)
			all = append(all, next)
		}
		return all
	}(),
	"role": {
		&rbacv1.Role{TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "Role"}},
		&rbacv1.Role{TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "Role"},
			Rules: []rbacv1.PolicyRule{}},
		&rbacv1.Role{TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "Role"},
			Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}}}},
	},
	"deployment": {
		&appsv1.Deployment{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
			Spec: appsv1.DeploymentSpec{Replicas: new(int32(1))}},
		&appsv1.Deployment{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
			Spec: appsv1.DeploymentSpec{Replicas: new(int32(2))}},
		&appsv1.Deployment{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
			Spec: appsv1.DeploymentSpec{Replicas: new(int32(2))}, Status: appsv1.DeploymentStatus{Replicas: 2}},
	},
}

// Owners are the same as with the library's own converter, for every change.
func TestOwnersAsUpstream(t *testing.T) {
	ours := NewTypeConverter(scheme.Scheme)
	library := managedfields.NewSchemeTypeConverter(scheme.Scheme,
		&typed.Parser{Schema: schema.Schema{Types: types.Types}})
	for name, all := range states {
		t.Run(name, func(t *testing.T) {
			gvk := all[0].GetObjectKind().GroupVersionKind()
			manager := func(c managedfields.TypeConverter) *managedfields.FieldManager {
				m, err := managedfields.NewDefaultFieldManager(c, runtime.UnsafeObjectConvertor(scheme.Scheme),
					scheme.Scheme, scheme.Scheme, gvk, gvk.GroupVersion(), "", nil)
				if err != nil {
					t.Fatal(err)
				}
				return m
			}
			mine, theirs := manager(ours), manager(library)
			live, err := scheme.Scheme.New(gvk)
			if err != nil {
				t.Fatal(err)
			}
			live.GetObjectKind().SetGroupVersionKind(gvk)
			for i, next := range all {
				who := []string{"one", "two", "three"}[i%3]
				a, errA := mine.Update(live.DeepCopyObject(), next.DeepCopyObject(), who)
				b, errB := theirs.Update(live.DeepCopyObject(), next.DeepCopyObject(), who)
				if errA != nil || errB != nil {
					t.Fatalf("state %d: %v, %v", i, errA, errB)
				}
				forget(a)
				forget(b)
				if !apiequality.Semantic.DeepEqual(a, b) {
					t.Fatalf("state %d:\n%v\nwith the library's:\n%v", i, fields(a), fields(b))
				}
				live = a
			}
			// An apply merges with all fields of the object.
			patch := &unstructured.Unstructured{Object: map[string]any{"apiVersion": gvk.GroupVersion().String(),
				"kind":     gvk.Kind,
				"metadata": map[string]any{"name": "p", "labels": map[string]any{"z": "z"}}}}
			a, errA := mine.Apply(live.DeepCopyObject(), patch.DeepCopy(), "four", false)
			b, errB := theirs.Apply(live.DeepCopyObject(), patch.DeepCopy(), "four", false)
			if errA != nil || errB != nil {
				t.Fatal(errA, errB)
			}
			forget(a)
			forget(b)
			if !apiequality.Semantic.DeepEqual(a, b) {
				t.Fatalf("applied:\n%v\nwith the library's:\n%v", a, b)
			}
		})
	}
}

// forget removes the timestamps of changes.
func forget(o runtime.Object) {
	m, _ := meta.Accessor(o)
	entries := m.GetManagedFields()
	for i := range entries {
		entries[i].Time = nil
	}
}

func fields(o runtime.Object) []metav1.ManagedFieldsEntry {
	m, _ := meta.Accessor(o)
	return m.GetManagedFields()
}
