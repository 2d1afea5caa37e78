package e2e

import (
	"strings"
	"testing"
	"time"
)

// explain returns what `carob explain` prints. Its exit code is 1 if there is a problem.
func (c *cluster) explain(of ...string) string {
	out, _ := run(append([]string{carobBin, "--data-dir", c.DataDir, "explain"}, of...)...)
	return out
}

const stuck = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: localhost/none:1, imagePullPolicy: Never}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: wbe}, ports: [{port: 80}]}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {storageClassName: fast, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: later}
spec: {suspend: true, template: {spec: {restartPolicy: Never, containers: [{name: c, image: localhost/none:1}]}}}
`

// carob explain shows why an object is stuck, for kinds and names as users of kubectl write them.
func TestExplain(t *testing.T) {
	c := startCluster(t)
	c.kubectlIn(t, stuck, "apply", "-f", "-")
	node := strings.TrimSpace(c.kubectl(t, "get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"))
	for object, want := range map[string]string{
		"deploy/web":        `: container web waits: Container image "localhost/none:1" is not present`,
		"service/web":       "! no pod matches its selector app=wbe\n! no endpoint is ready: connections are refused",
		"pvc data":          `! its StorageClass "fast" does not exist`,
		"job/later":         "! Suspended is true: ",
		"namespace/default": "  is active",
		"no " + node:        "  has been ready for ",
	} {
		of := strings.Split(object, " ")
		for end := time.Now().Add(patience); !strings.Contains(c.explain(of...), want); {
			if time.Now().After(end) {
				t.Errorf("%v: %s", of, c.explain(of...))
				break
			}
		}
	}
	for typed, want := range map[string]string{"deploy/": "deploy/web\n", "svc web": "web\n", "node/": "node/" + node} {
		args := append([]string{carobBin, "__complete", "--data-dir", c.DataDir, "explain"},
			strings.Split(typed, " ")...)
		if out, err := run(args...); err != nil || !strings.Contains(out, want) {
			t.Errorf("complete %q: %v\n%s", typed, err, out)
		}
	}
	for _, of := range [][]string{{"deploy/none"}, {"secret/a"}, {"deploy"}, {"deploy", "a", "b"}} {
		if out, err := run(append([]string{carobBin, "--data-dir", c.DataDir, "explain"}, of...)...); err == nil {
			t.Errorf("explain %v: %s", of, out)
		}
	}
}
