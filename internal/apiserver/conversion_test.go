package apiserver

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// converter renames spec.color to spec.paint and back, sets a label to say so, and adds a field
// that is in no schema. It counts its calls.
type converter struct {
	mu             sync.Mutex
	calls, objects int
	fails          bool
	silent         bool
}

func (c *converter) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	var review apiextensionsv1.ConversionReview
	if err := json.NewDecoder(q.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	c.calls, c.objects = c.calls+1, c.objects+len(review.Request.Objects)
	fails, silent := c.fails, c.silent
	c.mu.Unlock()
	if silent {
		panic(http.ErrAbortHandler) // ends the connection
	}
	answer := &apiextensionsv1.ConversionResponse{UID: review.Request.UID,
		Result: metav1.Status{Status: metav1.StatusSuccess}}
	if fails {
		answer.Result = metav1.Status{Status: metav1.StatusFailure, Message: "no way"}
	}
	for _, raw := range review.Request.Objects {
		var u unstructured.Unstructured
		if err := json.Unmarshal(raw.Raw, &u.Object); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		from, to := "color", "paint"
		if strings.HasSuffix(review.Request.DesiredAPIVersion, "/v1") {
			from, to = to, from
		}
		if spec, ok := u.Object["spec"].(map[string]any); ok {
			if x, there := spec[from]; there {
				spec[to] = x
				delete(spec, from)
				u.SetLabels(map[string]string{"tone": fmt.Sprint(to, "-", x)})
			}
			spec["junk"] = "to be pruned"
		}
		u.SetAPIVersion(review.Request.DesiredAPIVersion)
		answer.ConvertedObjects = append(answer.ConvertedObjects, runtime.RawExtension{Object: &u})
	}
	review.Response, review.Request = answer, nil
	_ = json.NewEncoder(w).Encode(review)
}

// counts returns how often it was called since the last time, and with how many objects.
func (c *converter) counts() (calls, objects int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	calls, objects = c.calls, c.objects
	c.calls, c.objects = 0, 0
	return calls, objects
}

// fail makes all later conversions fail.
func (c *converter) fail() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fails = true
}

// beSilent makes all later conversions get no answer.
func (c *converter) beSilent() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.silent = true
}

// serveConversion adds a version v2 to a definition of gadgets, and a webhook that converts between the two.
func serveConversion(t *testing.T, d *apiextensionsv1.CustomResourceDefinition) *converter {
	t.Helper()
	c := &converter{}
	hook := httptest.NewTLSServer(c)
	t.Cleanup(hook.Close)
	second := *d.Spec.Versions[0].DeepCopy()
	second.Name, second.Storage, second.SelectableFields, second.AdditionalPrinterColumns = "v2", false,
		[]apiextensionsv1.SelectableField{{JSONPath: ".spec.paint"}}, nil
	properties := second.Schema.OpenAPIV3Schema.Properties["spec"].Properties
	delete(properties, "color")
	properties["paint"] = apiextensionsv1.JSONSchemaProps{Type: "string"}
	properties["gloss"] = apiextensionsv1.JSONSchemaProps{Type: "string",
		Default: &apiextensionsv1.JSON{Raw: []byte(`"matt"`)}}
	d.Spec.Versions = append(d.Spec.Versions, second)
	d.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter,
		Webhook: &apiextensionsv1.WebhookConversion{
			ClientConfig: &apiextensionsv1.WebhookClientConfig{URL: &hook.URL,
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw})},
			ConversionReviewVersions: []string{"v1"}}}
	return c
}

// A list in a version that is not stored calls the conversion webhook once, whatever the selectors
// and pages, and shows the same as a read of each object.
func TestListsConvertTogether(t *testing.T) {
	r := start(t, t.TempDir())
	ctx := t.Context()
	d := gadgets()
	c := serveConversion(t, d)
	r.establish(t, d)
	stored, other := gadgetResource, gadgetResource
	other.Version = "v2"
	v1, v2 := r.objects(t).Resource(stored).Namespace("default"), r.objects(t).Resource(other).Namespace("default")
	const many = 40
	for i := range many {
		o := gadget(fmt.Sprintf("g%02d", i), map[string]any{"color": []string{"red", "blue"}[i%2]})
		if _, err := v1.Create(ctx, o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	c.counts()
	if list, err := v1.List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) != many {
		t.Fatalf("%d objects, %v", len(list.Items), err)
	}
	if calls, _ := c.counts(); calls != 0 {
		t.Errorf("a list by the stored version asked the webhook %d times", calls)
	}
	for _, x := range []struct {
		name    string
		options metav1.ListOptions
		want    int
	}{
		{"all", metav1.ListOptions{}, many},
		{"by field", metav1.ListOptions{FieldSelector: "spec.paint=red"}, many / 2},
		{"by label", metav1.ListOptions{LabelSelector: "tone=paint-blue"}, many / 2},
		{"a page", metav1.ListOptions{Limit: 7}, 7},
		{"a page of some", metav1.ListOptions{Limit: 7, LabelSelector: "tone=paint-blue"}, 7},
	} {
		list, err := v2.List(ctx, x.options)
		if err != nil || len(list.Items) != x.want {
			t.Fatalf("%s: %d objects, %v", x.name, len(list.Items), err)
		}
		if calls, _ := c.counts(); calls != 1 {
			t.Errorf("%s: the webhook was asked %d times", x.name, calls)
		}
		one := list.Items[len(list.Items)-1]
		got, err := v2.Get(ctx, one.GetName(), metav1.GetOptions{})
		if err != nil || !equality.Semantic.DeepEqual(got.Object, one.Object) {
			t.Errorf("%s: a list shows %v, a read %v, %v", x.name, one.Object, got, err)
		}
		c.counts()
	}
	// Pages are continuous, and later writes are not lost.
	page := metav1.ListOptions{Limit: 15}
	names := map[string]bool{}
	for {
		list, err := v2.List(ctx, page)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range list.Items {
			names[o.GetName()] = true
		}
		if page.Continue = list.GetContinue(); page.Continue == "" {
			break
		}
	}
	if calls, _ := c.counts(); len(names) != many || calls != 3 {
		t.Errorf("three pages: %d objects, %d calls", len(names), calls)
	}
	c.fail()
	if _, err := v2.List(ctx, metav1.ListOptions{}); err == nil || !strings.Contains(err.Error(), "no way") {
		t.Errorf("a webhook that fails: %v", err)
	}
	c.beSilent()
	c.counts()
	_, err := v2.List(ctx, metav1.ListOptions{LabelSelector: "tone=paint-blue"})
	calls, _ := c.counts() // each lasts up to 30 s if the webhook hangs
	if !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), "conversion webhook for ") || calls != 1 {
		t.Errorf("a webhook that does not answer: %d calls, %v", calls, err)
	}
}
