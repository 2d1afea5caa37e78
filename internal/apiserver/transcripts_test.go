package apiserver

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"sigs.k8s.io/yaml"

	"carob/internal/base/transcript"
)

// TestTranscripts runs the stories in testdata/transcripts against one server, each in a namespace of its own: what
// the API answers to requests for workloads (docs/spec/workloads.md). Rewrite them with -rewrite, and commit only what
// you understand.
//
//	create RESOURCE NAME [show=(FIELD,…)]         a small valid object of this kind, changed by the merge patch below
//	patch RESOURCE NAME[/SUBRESOURCE] [show=…]    a merge patch
//	put RESOURCE NAME[/SUBRESOURCE] [show=…]      the object as it is stored, changed by the merge patch below
//	get RESOURCE NAME[/SUBRESOURCE] [show=…]
//	delete RESOURCE NAME                          the body is below
//	list RESOURCE FIELD=VALUE                     the names of those that a field selector finds
//	table RESOURCE                                the columns and rows that kubectl get -o wide prints
//	discovery RESOURCE                            short names, categories, and subresources
//
// It prints the status, the message of an error, warnings, and the fields to show.
func TestTranscripts(t *testing.T) {
	r := start(t, t.TempDir())
	stories := 0
	transcript.Run(t, 8, func(t *testing.T) *apiStory {
		stories++
		s := &apiStory{r: r, namespace: fmt.Sprintf("story-%d", stories)}
		status, text, _ := r.raw(t, http.MethodPost, "/api/v1/namespaces", nil,
			[]byte(`{"metadata":{"name":"`+s.namespace+`"}}`))
		if status != http.StatusCreated {
			t.Fatal(text)
		}
		return s
	}, func(t *testing.T, s *apiStory, d *datadriven.TestData) string { return s.command(t, d) })
}

// apiStory is one story: its requests go to this namespace.
type apiStory struct {
	r         *running
	namespace string
}

// storyKinds are the resources of the stories: their groups and versions, and the least that is valid.
var storyKinds = map[string]struct{ path, object string }{
	"deployments": {"/apis/apps/v1",
		`{"spec": {"selector": {"matchLabels": {"app": "web"}}, "template": ` + storyTemplate + `}}`},
	"replicasets": {"/apis/apps/v1",
		`{"spec": {"selector": {"matchLabels": {"app": "web"}}, "template": ` + storyTemplate + `}}`},
	"statefulsets": {"/apis/apps/v1",
		`{"spec": {"selector": {"matchLabels": {"app": "web"}}, "template": ` + storyTemplate + `}}`},
	"daemonsets": {"/apis/apps/v1",
		`{"spec": {"selector": {"matchLabels": {"app": "web"}}, "template": ` + storyTemplate + `}}`},
	"replicationcontrollers": {"/api/v1", `{"spec": {"template": ` + storyTemplate + `}}`},
	"controllerrevisions":    {"/apis/apps/v1", `{"data": {"a": 1}, "revision": 1}`},
	"jobs":                   {"/apis/batch/v1", `{"spec": {"template": ` + storyJobTemplate + `}}`},
	"cronjobs": {"/apis/batch/v1",
		`{"spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": ` + storyJobTemplate + `}}}}`},
	"horizontalpodautoscalers": {"/apis/autoscaling/v2", `{"spec": {"maxReplicas": 5, "scaleTargetRef":
		{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}}`},
	"horizontalpodautoscalers.v1": {"/apis/autoscaling/v1", `{"spec": {"maxReplicas": 5, "scaleTargetRef":
		{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}}`},
	"poddisruptionbudgets": {"/apis/policy/v1", `{"spec": {"selector": {"matchLabels": {"app": "web"}}}}`},
}

const (
	storyTemplate    = `{"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}`
	storyJobTemplate = `{"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}`
)

func (s *apiStory) command(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	arg := func(i int) string {
		if i < len(d.CmdArgs) {
			return d.CmdArgs[i].Key
		}
		return ""
	}
	kind, ok := storyKinds[arg(0)]
	resource := strings.TrimSuffix(arg(0), ".v1")
	if !ok {
		t.Fatalf("%s: unknown resource %q", d.Pos, arg(0))
	}
	list := kind.path + "/namespaces/" + s.namespace + "/" + resource
	one := list + "/" + arg(1)
	body, err := yaml.YAMLToJSON([]byte(d.Input))
	if err != nil {
		t.Fatalf("%s: %v", d.Pos, err)
	}
	switch d.Cmd {
	case "create":
		return s.request(t, d, http.MethodPost, list, "",
			merge(t, merge(t, []byte(kind.object), []byte(`{"metadata":{"name":"`+arg(1)+`"}}`)), body))
	case "patch":
		return s.request(t, d, http.MethodPatch, one, "application/merge-patch+json", body)
	case "put":
		_, stored, _ := s.r.raw(t, http.MethodGet, one, nil, nil)
		return s.request(t, d, http.MethodPut, one, "", merge(t, []byte(stored), body))
	case "get":
		return s.request(t, d, http.MethodGet, one, "", nil)
	case "delete":
		return s.request(t, d, http.MethodDelete, one, "", body)
	case "list":
		return s.names(t, list+"?fieldSelector="+url.QueryEscape(arg(1)+"="+strings.Join(d.CmdArgs[1].Vals, ",")))
	case "table":
		return s.table(t, list)
	case "discovery":
		return s.discovery(t, kind.path, resource)
	}
	t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
	return ""
}

func merge(t *testing.T, object, change []byte) []byte {
	t.Helper()
	if string(change) == "null" {
		return object
	}
	merged, err := jsonpatch.MergePatch(object, change)
	if err != nil {
		t.Fatal(err)
	}
	return merged
}

// request sends one and returns what it printed.
func (s *apiStory) request(t *testing.T, d *datadriven.TestData, method, path, media string, body []byte) string {
	t.Helper()
	header := map[string]string{}
	if media != "" {
		header["Content-Type"] = media
	}
	status, text, warnings := s.r.raw(t, method, path, header, body)
	var object map[string]any
	if err := json.Unmarshal([]byte(text), &object); err != nil {
		t.Fatalf("%s: %v: %s", d.Pos, err, text)
	}
	out := fmt.Sprintln(status)
	if status >= http.StatusBadRequest {
		out = fmt.Sprintf("%d %v\n", status, object["message"])
	}
	for _, w := range warnings {
		out += "warning: " + w + "\n"
	}
	for _, a := range d.CmdArgs {
		if a.Key != "show" || status >= http.StatusBadRequest {
			continue
		}
		for _, path := range a.Vals {
			value, err := json.Marshal(field(object, strings.Split(path, ".")))
			if err != nil {
				t.Fatal(err)
			}
			out += path + ": " + string(value) + "\n"
		}
	}
	return steady(out)
}

// steady replaces what differs in each run.
func steady(text string) string {
	text = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`).ReplaceAllString(text, "<uid>")
	return regexp.MustCompile(`· \d+d ·`).ReplaceAllString(text, "· <days> ·")
}

// field returns a field of a JSON object; nil if it is absent.
func field(object any, path []string) any {
	for _, key := range path {
		m, ok := object.(map[string]any)
		if !ok {
			return nil
		}
		object = m[key]
	}
	return object
}

func (s *apiStory) names(t *testing.T, path string) string {
	t.Helper()
	status, text, _ := s.r.raw(t, http.MethodGet, path, nil, nil)
	var l struct {
		Message string
		Items   []struct{ Metadata struct{ Name string } }
	}
	if err := json.Unmarshal([]byte(text), &l); err != nil {
		t.Fatal(err)
	}
	out := []string{strings.TrimSpace(fmt.Sprint(status, " ", l.Message))}
	for _, item := range l.Items {
		out = append(out, item.Metadata.Name)
	}
	return transcript.Lines(out)
}

func (s *apiStory) table(t *testing.T, path string) string {
	t.Helper()
	_, text, _ := s.r.raw(t, http.MethodGet, path,
		map[string]string{"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}, nil)
	var table struct {
		ColumnDefinitions []struct {
			Name     string
			Priority int
		}
		Rows []struct{ Cells []any }
	}
	if err := json.Unmarshal([]byte(text), &table); err != nil {
		t.Fatal(err)
	}
	var head, wide []string
	for _, c := range table.ColumnDefinitions {
		if name := strings.ToUpper(c.Name); c.Priority == 0 {
			head = append(head, name)
		} else {
			wide = append(wide, name)
		}
	}
	out := []string{strings.Join(head, " · ") + " (" + strings.Join(wide, " · ") + ")"}
	for _, row := range table.Rows {
		var cells []string
		for i, c := range row.Cells {
			if table.ColumnDefinitions[i].Name == "Age" {
				c = "<age>" // of seconds
			}
			cells = append(cells, fmt.Sprint(c))
		}
		out = append(out, steady(strings.Join(cells, " · ")))
	}
	return transcript.Lines(out)
}

func (s *apiStory) discovery(t *testing.T, path, resource string) string {
	t.Helper()
	_, text, _ := s.r.raw(t, http.MethodGet, path, nil, nil)
	var l struct {
		Resources []struct {
			Name                   string
			ShortNames, Categories []string
		}
	}
	if err := json.Unmarshal([]byte(text), &l); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, res := range l.Resources {
		if res.Name == resource || strings.HasPrefix(res.Name, resource+"/") {
			out[res.Name] = fmt.Sprintf("%s short %v categories %v", res.Name, res.ShortNames, res.Categories)
		}
	}
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(out)) {
		lines = append(lines, out[name])
	}
	return transcript.Lines(lines)
}
