package storage

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
	clientv3 "go.etcd.io/etcd/client/v3"

	"carob/internal/base/errkind"
)

// fill writes n keys and leaves a stopped store.
func fill(t testing.TB, dir string, n int) {
	t.Helper()
	e := open(t, dir)
	for i := range n {
		if _, err := e.Client.Put(t.Context(), fmt.Sprint("/k", i), strings.Repeat("v", 50)); err != nil {
			t.Fatal(err)
		}
	}
	e.Close()
}

// whole opens a store and returns what is wrong with it: it must have n keys and accept another.
func whole(t *testing.T, dir string, n int64) error {
	t.Helper()
	e, err := Open(t.Context(), Config{Dir: dir, NoFsync: true})
	if err != nil {
		return err
	}
	defer e.Close()
	got, err := e.Client.KV.Get(t.Context(), "/k", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil || got.Count < n {
		return fmt.Errorf("%d of %d keys: %w", got.Count, n, err)
	}
	_, err = e.Client.Put(t.Context(), "/more", "v")
	return err
}

// logFile returns the newest file of the log.
func logFile(t testing.TB, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "member/wal/*.wal"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no log: %v", err)
	}
	return files[len(files)-1]
}

func dbFile(dir string) string { return filepath.Join(dir, "member/snap/db") }

func spoil(t *testing.T, file string, at int64, text string) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte(text), at); err != nil {
		t.Fatal(err)
	}
}

func copyDir(t *testing.T, from string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

// Damage is reported, and nothing is written: the files are unchanged.
func TestDamagedFiles(t *testing.T) {
	const keys = 200
	good := t.TempDir()
	fill(t, good, keys)
	truncate := func(file func(string) string, size int64) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			if err := os.Truncate(file(dir), size); err != nil {
				t.Fatal(err)
			}
		}
	}
	remove := func(name string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	log := func(dir string) string { return logFile(t, dir) }
	for name, c := range map[string]struct {
		damage func(t *testing.T, dir string)
		want   string // empty when all is there again
	}{
		"beginning of the log": {func(t *testing.T,
			dir string) {
			spoil(t, log(dir), 0, strings.Repeat("damage!!", 4096))
		}, "damaged at its beginning"},
		"part of the log": {func(t *testing.T, dir string) { spoil(t, log(dir), 4096, "damage!!") },
			"cannot be read"},
		"lost sector of the log": {func(t *testing.T,
			dir string) {
			spoil(t, log(dir), 4096, strings.Repeat("\x00", 512))
		}, "cannot be read"},
		"zeros from a record on": {func(t *testing.T,
			dir string) {
			spoil(t, log(dir), 2048, strings.Repeat("\x00", 2048))
		}, "cannot be read"},
		"log that is cut off":      {truncate(log, 4100), "the log ends at entry"},
		"empty log":                {truncate(log, 0), "damaged at its beginning"},
		"no log":                   {remove("member/wal"), "the log ends at entry 0"},
		"no database":              {remove("member/snap/db"), ""}, // the log is there from its beginning
		"no snapshots":             {remove("member/snap"), ""},
		"empty database":           {truncate(dbFile, 0), ""},
		"database that is cut off": {truncate(dbFile, 16<<10), "it is cut off"},
		"beginnings of the database": {func(t *testing.T,
			dir string) {
			spoil(t, dbFile(dir), 0, strings.Repeat("damage!!", 1024))
		}, "neither of its two meta pages"},
		"one beginning of the database": {func(t *testing.T, dir string) { spoil(t, dbFile(dir), 20, "damage!!") }, ""},
		"pages of the database": {func(t *testing.T,
			dir string) {
			spoil(t, dbFile(dir), 8192, strings.Repeat("damage!!", 4096))
		}, "page"},
		"a directory for a database": {func(t *testing.T, dir string) {
			remove("member/snap/db")(t, dir)
			if err := os.Mkdir(dbFile(dir), 0o700); err != nil {
				t.Fatal(err)
			}
		}, "db"},
		"a newer etcd": {func(t *testing.T, dir string) {
			db, err := bolt.Open(dbFile(dir), 0o600, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			if err := db.Update(func(tx *bolt.Tx) error {
				return tx.Bucket([]byte("meta")).Put([]byte("storageVersion"), []byte("3.99.0"))
			}); err != nil {
				t.Fatal(err)
			}
		}, "3.99.0"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := copyDir(t, good)
			c.damage(t, dir)
			err := whole(t, dir, keys)
			if c.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if !errkind.Is(err, errkind.Corrupt) || !strings.Contains(err.Error(), c.want) ||
				!strings.Contains(err.Error(), dir) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v: %v, want %q", errkind.Of(err), err, c.want)
			}
			if broken, _ := filepath.Glob(filepath.Join(dir, "member/wal/*.broken")); len(broken) > 0 {
				t.Errorf("it was repaired: %v", broken)
			}
		})
	}
}

// Bytes that flip anywhere in the log, and a log that ends anywhere: either it is reported, or
// nothing is lost.
func TestDamageAnywhereInTheLog(t *testing.T) {
	const keys = 60
	good := t.TempDir()
	fill(t, good, keys)
	b, unmap, err := mapFile(logFile(t, good))
	if err != nil {
		t.Fatal(err)
	}
	defer unmap()
	random := rand.New(rand.NewPCG(1, 2))
	used := len(b)
	for used > 0 && b[used-1] == 0 {
		used--
	}
	if err := os.Truncate(logFile(t, good), int64(used+10_000)); err != nil { // copied quickly
		t.Fatal(err)
	}
	reports := 0
	for range 150 {
		dir, at := copyDir(t, good), random.IntN(used)
		what := fmt.Sprint("flip at ", at)
		switch random.IntN(3) {
		case 0:
			spoil(t, logFile(t, dir), int64(at), string(b[at]^(1<<random.IntN(8))))
		case 1:
			what = fmt.Sprint("zeros at ", at)
			spoil(t, logFile(t, dir), int64(at), strings.Repeat("\x00", 1+random.IntN(600)))
		case 2:
			what = fmt.Sprint("end at ", at)
			if err := os.Truncate(logFile(t, dir), int64(at)); err != nil {
				t.Fatal(err)
			}
		}
		if err := whole(t, dir, keys); errkind.Is(err, errkind.Corrupt) {
			reports++
		} else if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if reports < 100 {
		t.Errorf("%d of 150 were reported", reports)
	}
}

// Pages of the database that are lost or outdated: either it is reported, or it is opened; nothing
// crashes.
func TestDamageAnywhereInTheDatabase(t *testing.T) {
	good := t.TempDir()
	fill(t, good, 600)
	info, err := os.Stat(dbFile(good))
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(3, 4))
	const page = 4096
	reports := 0
	for n := range info.Size() / page {
		dir := copyDir(t, good)
		lost := strings.Repeat("\x00", page)
		if n%2 == 0 {
			text := make([]byte, page)
			for i := range text {
				text[i] = byte(random.Uint32())
			}
			lost = string(text)
		}
		spoil(t, dbFile(dir), n*page, lost)
		e, err := Open(t.Context(), Config{Dir: dir, NoFsync: true})
		if errkind.Is(err, errkind.Corrupt) {
			reports++
		} else if err != nil {
			t.Errorf("page %d: %v", n, err)
		} else {
			e.Close()
		}
	}
	if reports == 0 {
		t.Error("no lost page was told")
	}
	t.Logf("%d of %d pages", reports, info.Size()/page)
}

// A log that was restarted many times, as in an old store, is complete; with a database that is
// older than it, it is not.
func TestLongLog(t *testing.T) {
	dir := t.TempDir()
	fill(t, dir, 10)
	old, err := os.ReadFile(dbFile(dir))
	if err != nil {
		t.Fatal(err)
	}
	e := open(t, dir)
	big := strings.Repeat("v", 4<<10)
	for i := range 2*snapshotEvery + 2000 { // 90 MB: a file of 64 MB is full
		if _, err := e.Client.Put(t.Context(), fmt.Sprint("/k", i%100), big); err != nil {
			t.Fatal(err)
		}
	}
	e.Close()
	if err := whole(t, dir, 100); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dbFile(dir), old, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := whole(t, dir, 10); !errkind.Is(err, errkind.Corrupt) {
		t.Errorf("a database of another time: %v", err)
	}
}

// FuzzFiles checks files with arbitrary content: damage is reported as such, and nothing crashes.
func FuzzFiles(f *testing.F) {
	good := f.TempDir()
	fill(f, good, 5)
	log, err := os.ReadFile(logFile(f, good))
	if err != nil {
		f.Fatal(err)
	}
	log = bytes.TrimRight(log, "\x00")
	db, err := os.ReadFile(dbFile(good))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(log, db)
	f.Add(log[:len(log)-9], db[:2<<12])
	f.Add([]byte("damage!!"), []byte{})
	f.Add(append(bytes.Clone(log), 0, 0, 0, 0, 0, 0, 0, 0x87), []byte("x"))
	f.Fuzz(func(t *testing.T, log, db []byte) {
		dir := t.TempDir()
		for name, b := range map[string][]byte{"wal/0000000000000000-0000000000000000.wal": log, "snap/db": db} {
			file := filepath.Join(dir, "member", name)
			if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := checkFiles(dir); err != nil &&
			(!errkind.Is(err, errkind.Corrupt) || strings.Contains(err.Error(), "runtime error")) {
			t.Error(err)
		}
	})
}
