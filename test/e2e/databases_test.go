package e2e

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/lib/pq"
	"golang.org/x/sys/unix"

	"carob/internal/base/testwait"
)

const databasesManifest = `
apiVersion: v1
kind: Service
metadata: {name: NAME}
spec: {selector: {app: NAME}, ports: [{port: PORT}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: NAME}
spec:
  serviceName: NAME
  selector: {matchLabels: {app: NAME}}
  template:
    metadata: {labels: {app: NAME}}
    spec:
      terminationGracePeriodSeconds: 5
      containers:
      - name: NAME
        image: IMAGE
        env: [{name: POSTGRES_PASSWORD, value: secret}, {name: MYSQL_ROOT_PASSWORD, value: secret}]
        readinessProbe: {tcpSocket: {port: PORT}, periodSeconds: 1}
        volumeMounts: [{name: data, mountPath: DATA}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
`

// database is one server in the cluster, and a client outside of it that writes numbered rows.
type database struct {
	name, insert string
	db           *sql.DB
	last         atomic.Int64 // number of the last row that was sent
	progress     chan struct{}

	mu           sync.Mutex
	acknowledged []int64
	failed       int
}

func (d *database) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.acknowledged)
}

// write sends rows until the context ends, each once, and notes those whose commit was acknowledged.
func (d *database) write(ctx context.Context) {
	for ctx.Err() == nil {
		n := d.last.Add(1)
		within, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err := d.db.ExecContext(within, d.insert, n, content(n))
		cancel()
		d.mu.Lock()
		if err == nil {
			d.acknowledged = append(d.acknowledged, n)
		} else {
			d.failed++
		}
		d.mu.Unlock()
		if err != nil { // down: wait a little before the next try
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
			}
			continue
		}
		select {
		case d.progress <- struct{}{}:
		default:
		}
	}
}

// content is what row n holds beside its number: enough that some rows cross pages.
func content(n int64) string { return strings.Repeat(fmt.Sprintf("row %d;", n), 40) }

// more waits until so many rows more are acknowledged.
func (d *database) more(t *testing.T, c *cluster, rows int) {
	t.Helper()
	want := d.count() + rows
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for d.count() < want {
		select {
		case <-d.progress:
		case <-limit.C:
			pods, _ := c.tryKubectl("", "describe", "pod", d.name+"-0")
			logs, _ := c.tryKubectl("", "logs", "--tail=40", d.name+"-0")
			t.Fatalf("%s acknowledges no rows: %d of %d\n%s\n%s\n%v", d.name, d.count(), want, pods, logs, d.db.Ping())
		}
	}
}

// check finds rows that were acknowledged and are missing, and rows that were never sent.
func (d *database) check(t *testing.T) {
	t.Helper()
	rows, err := d.db.QueryContext(t.Context(), "SELECT n, content FROM numbered")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	found := map[int64]bool{}
	for rows.Next() {
		var n int64
		var text string
		if err := rows.Scan(&n, &text); err != nil {
			t.Fatal(err)
		}
		if text != content(n) || n > d.last.Load() || found[n] {
			t.Errorf("%s: row %d is %.60q", d.name, n, text)
		}
		found[n] = true
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	lost := 0
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, n := range d.acknowledged {
		if !found[n] {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("%s lost %d of %d rows that it had acknowledged", d.name, lost, len(d.acknowledged))
	}
	t.Logf("%s: %d rows acknowledged, %d lost, %d found, %d tries failed", d.name, len(d.acknowledged), lost,
		len(found), d.failed)
}

// startDatabase makes the StatefulSet; insert takes a number and a text.
func startDatabase(t *testing.T, c *cluster, name, image, port, data string,
	connect func(address string) (*sql.DB, error), insert string) *database {
	t.Helper()
	c.kubectlIn(t, strings.NewReplacer("NAME", name, "IMAGE", image, "PORT", port, "DATA", data).
		Replace(databasesManifest), "apply", "-f", "-")
	address := c.kubectl(t, "get", "service", name, "-o", "jsonpath={.spec.clusterIP}:{.spec.ports[0].port}")
	db, err := connect(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return &database{name: name, insert: insert, db: db, progress: make(chan struct{}, 1)}
}

// create waits until the server answers, and makes the table.
func (d *database) create(t *testing.T, c *cluster) {
	t.Helper()
	testwait.Until(t, d.name+" makes a table", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := d.db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS numbered (n BIGINT PRIMARY KEY, content TEXT)")
		if err != nil {
			logs, _ := c.tryKubectl("", "logs", "--tail=20", d.name+"-0")
			return fmt.Errorf("%w\n%s", err, logs)
		}
		return nil
	})
}

// TestDatabases has PostgreSQL and MariaDB write to volumes of the default class while carob is killed, or the
// databases, or the machine loses power: no row is lost whose commit a client outside of the cluster has seen.
// CAROB_DATABASE_KILLS sets how often (the default is 3: each once), CAROB_KILLS_SEED the order and the moments.
func TestDatabases(t *testing.T) {
	nativeOnly(t, "the power goes with all processes of the runtime")
	t.Parallel()
	kills, seed := number(t, "CAROB_DATABASE_KILLS", 3), number(t, "CAROB_KILLS_SEED", 1)
	d := newDisk(t, 6<<30)
	c, err := newCluster(d.dir, "--registry-config", mirrors.dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			c.dumpLog(t)
		}
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
	if err := c.up(); err != nil {
		t.Fatal(err)
	}
	all := []*database{
		startDatabase(t, c, "postgres", "postgres:15", "5432", "/var/lib/postgresql/data",
			func(address string) (*sql.DB, error) {
				connector, err := pq.NewConnector("postgres://postgres:secret@" + address +
					"/postgres?sslmode=disable&connect_timeout=2")
				if err != nil {
					return nil, err
				}
				return sql.OpenDB(connector), nil
			}, "INSERT INTO numbered VALUES ($1, $2)"),
		startDatabase(t, c, "mariadb", "mysql:8.0", "3306", "/var/lib/mysql",
			func(address string) (*sql.DB, error) {
				config := mysql.NewConfig()
				config.User, config.Passwd, config.Net, config.Addr = "root", "secret", "tcp", address
				config.DBName, config.Timeout, config.Logger = "mysql", 2*time.Second, &mysql.NopLogger{}
				connector, err := mysql.NewConnector(config)
				if err != nil {
					return nil, err
				}
				return sql.OpenDB(connector), nil
			}, "INSERT INTO numbered VALUES (?, ?)"),
	}
	var writers sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(func() { stop(); writers.Wait() })
	for _, d := range all {
		d.create(t, c)
		for range 2 {
			writers.Go(func() { d.write(ctx) })
		}
	}
	done := map[string]int{}
	for n := range kills {
		random := rand.New(rand.NewPCG(uint64(seed), uint64(n)))
		for _, d := range all {
			d.more(t, c, 1+random.IntN(100))
		}
		kind := n % 3
		if n >= 3 {
			kind = random.IntN(3)
		}
		began := time.Now()
		switch kind {
		case 0:
			c.kill(t)
			for _, d := range all { // without an effect on clients
				d.more(t, c, 10)
			}
			if err := c.up(); err != nil {
				t.Fatal(err)
			}
			done["carob"]++
		case 1:
			for _, d := range all {
				c.killContainer(t, d.name+"-0")
			}
			done["databases"]++
		case 2:
			d.losePower(t, c)
			if err := c.up(); err != nil {
				t.Fatal(err)
			}
			done["power"]++
		}
		for _, d := range all {
			d.more(t, c, 1)
		}
		t.Logf("kill %d of kind %d: after %v both write again", n, kind, time.Since(began).Round(time.Millisecond))
	}
	stop()
	writers.Wait()
	t.Logf("killed: %v", done)
	for _, d := range all {
		d.check(t)
	}
}

// killContainer kills all processes of a pod's only container.
func (c *cluster) killContainer(t *testing.T, pod string) {
	t.Helper()
	_, id, _ := strings.Cut(c.pod(t, pod).Status.ContainerStatuses[0].ContainerID, "://")
	pids := processesOf(t, id)
	if len(pids) == 0 {
		t.Fatalf("no process of container %q of %s runs", id, pod)
	}
	for _, pid := range pids {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}
