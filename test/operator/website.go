package operator

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
)

var groupVersion = schema.GroupVersion{Group: "web.example.com", Version: "v1"}

// Website is a small web server with a text, as in testdata/crd.yaml.
type Website struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              WebsiteSpec   `json:"spec"`
	Status            WebsiteStatus `json:"status,omitempty"`
}

// WebsiteSpec is the desired state of a Website.
type WebsiteSpec struct {
	Text     string `json:"text"`
	Replicas *int32 `json:"replicas,omitempty"`
}

// WebsiteStatus is what the operator reports.
type WebsiteStatus struct {
	Replicas           int32              `json:"replicas,omitempty"` // pods that are available
	Selector           string             `json:"selector,omitempty"`
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
}

// DeepCopyObject implements runtime.Object.
func (w *Website) DeepCopyObject() runtime.Object {
	c := *w
	c.ObjectMeta = *w.ObjectMeta.DeepCopy()
	if w.Spec.Replicas != nil {
		c.Spec.Replicas = ptr.To(*w.Spec.Replicas)
	}
	c.Status.Conditions = nil
	for _, condition := range w.Status.Conditions {
		c.Status.Conditions = append(c.Status.Conditions, *condition.DeepCopy())
	}
	return &c
}

// WebsiteList is a list of them.
type WebsiteList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Website `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *WebsiteList) DeepCopyObject() runtime.Object {
	c := *l
	c.Items = nil
	for i := range l.Items {
		c.Items = append(c.Items, *l.Items[i].DeepCopyObject().(*Website))
	}
	return &c
}

func addToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(groupVersion, &Website{}, &WebsiteList{})
	metav1.AddToGroupVersion(s, groupVersion)
	return nil
}

// image is part of every carob.
const image = "carob.local/demo:1"

// configMap holds the text.
func (w *Website) configMap(c *corev1.ConfigMap) {
	c.Data = map[string]string{"text": w.Spec.Text}
}

// deployment serves it. A new text rolls out, since the template names it.
func (w *Website) deployment(d *appsv1.Deployment) {
	labels := map[string]string{"website": w.Name}
	d.Spec.Replicas = w.Spec.Replicas
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	t := &d.Spec.Template
	t.Labels = labels
	if t.Annotations == nil {
		t.Annotations = map[string]string{}
	}
	t.Annotations["web.example.com/text"] = w.Spec.Text
	if len(t.Spec.Containers) == 0 {
		t.Spec.Containers = make([]corev1.Container, 1)
	}
	c := &t.Spec.Containers[0]
	c.Name, c.Image, c.ImagePullPolicy = "web", image, corev1.PullIfNotPresent
	c.Env = []corev1.EnvVar{{Name: "TEXT",
		ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: w.Name}, Key: "text"}}}}
}
