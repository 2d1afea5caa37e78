package flagfile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"carob/internal/base/instance"
)

// given are flags of all types, as the command line left them.
func given(t testing.TB, args ...string) Flags {
	fl := pflag.NewFlagSet("up", pflag.ContinueOnError)
	for _, name := range []string{"config", "help", "data-dir", "node-name", "cluster-dns"} {
		fl.String(name, "", "")
	}
	if err := fl.SetAnnotation("cluster-dns", CommaSeparated, []string{"true"}); err != nil {
		t.Fatal(err)
	}
	fl.Int("max-pods", 0, "")
	fl.Bool("profiling", true, "")
	fl.Duration("shutdown-grace-period", time.Second, "")
	fl.StringSlice("etcd-servers", []string{"http://default"}, "")
	if err := fl.Parse(args); err != nil {
		t.Fatal(err)
	}
	return Flags{FlagSet: fl, Except: []string{"config", "help"},
		KindOf: func(v pflag.Value) string { return "a " + v.Type() }}
}

func state(fl Flags) string {
	var b strings.Builder
	fl.VisitAll(func(f *pflag.Flag) { b.WriteString(f.Name + "=" + f.Value.String() + "\n") })
	return b.String()
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "carob.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Files that set nothing are allowed.
func TestFileWithoutFlags(t *testing.T) {
	want := state(given(t))
	for _, text := range []string{"", "# nothing\n", "---\n", "{}\n"} {
		fl := given(t)
		if err := Read(write(t, text), fl); err != nil || state(fl) != want {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// Values reach the flags as they are written, lists in both forms; flags of the command line stay.
func TestRead(t *testing.T) {
	file := write(t, "max-pods: 0x20\nnode-name: 007\nprofiling: false\nshutdown-grace-period: 1m\n"+
		"etcd-servers: http://a,http://b\ncluster-dns: [10.0.0.1, 10.0.0.2]\ndata-dir: ''\n")
	fl := given(t)
	if err := Read(file, fl); err != nil {
		t.Fatal(err)
	}
	want := "cluster-dns=10.0.0.1,10.0.0.2\nconfig=\ndata-dir=\netcd-servers=[http://a,http://b]\nhelp=\n" +
		"max-pods=32\nnode-name=007\nprofiling=false\nshutdown-grace-period=1m0s\n"
	if got := state(fl); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if !fl.Changed("max-pods") || fl.Changed("config") {
		t.Error("the flags do not say what was set")
	}
	fl = given(t, "--max-pods=7", "--etcd-servers=http://c", "--node-name=x")
	if err := Read(file, fl); err != nil {
		t.Fatal(err)
	}
	if s := state(fl); !strings.Contains(s, "max-pods=7\n") || !strings.Contains(s, "etcd-servers=[http://c]\n") ||
		!strings.Contains(s, "node-name=x\n") || !strings.Contains(s, "profiling=false\n") {
		t.Errorf("the command line does not win:\n%s", s)
	}
}

// What is wrong in a file is one line with the file's name and the line's number, and nothing is set. A flag of the
// command line that wins over a wrong value does not hide it.
func TestInvalidFileSetsNothing(t *testing.T) {
	for text, want := range map[string]string{
		"max-pods: many":                        `:1: max-pods: "many" is not a int`,
		"\n\nmax-pods: 1.5":                     `:3: max-pods: "1.5" is not a int`,
		"profiling: maybe":                      `:1: profiling: "maybe" is not a bool`,
		"shutdown-grace-period: 30":             `:1: shutdown-grace-period: "30" is not a duration`,
		"node-name: [a]":                        ":1: node-name is a string, not a list",
		"node-name: {a: b}":                     ":1: node-name is a string, not a mapping",
		"etcd-servers: {a: b}":                  ":1: etcd-servers is a list, not a mapping",
		"etcd-servers:\n- http://a\n- {b: c}":   ":3: etcd-servers: an entry of the list is not a value",
		"etcd-servers:\n- http://a\n-":          ":3: etcd-servers: an entry of the list is not a value",
		"cluster-dns: ['10.0.0.1,10.0.0.2']":    ":1: cluster-dns: an entry of the list has a comma",
		"# x\nmaxpods: 3":                       `:2: unknown key "maxpods"`,
		"--max-pods: 3":                         `:1: unknown key "--max-pods"; did you mean max-pods?`,
		"max_pods: 3":                           `:1: unknown key "max_pods"; did you mean max-pods?`,
		"<<: {max-pods: 3}":                     `:1: unknown key "<<"`,
		"? [a]\n: b":                            ":1: the key is not the name of a flag",
		"kind: KubeletConfiguration":            "belongs in the file of kubelet-config",
		"max-pods: 3\nlisten: x\nmax-pods: 4":   `:3: "max-pods" is already in line 1`,
		"config: other.yaml":                    ":1: config cannot be set in this file",
		"help: true":                            ":1: help cannot be set in this file",
		"- max-pods":                            ":1: it is not a list of FLAG: VALUE lines",
		"just text":                             ":1: it is not a list of FLAG: VALUE lines",
		"max-pods: 3\n---\nmax-pods: 4\n":       ": it has more than one document",
		"a: [":                                  ": it is not YAML: line 1",
		"a: b: c\n":                             ": it is not YAML",
		"\x00":                                  ": it is not YAML",
		"# " + strings.Repeat("x", 1<<20):       ": it has more than 1048576 bytes",
		"max-pods: 3\nnode-name: a\nprofiling:": ":3: profiling has no value",
	} {
		for _, args := range [][]string{nil, {"--max-pods=9"}} {
			fl, file := given(t, args...), write(t, text)
			before := state(fl)
			err := Read(file, fl)
			if err == nil || !errors.Is(err, instance.ErrFlag) || strings.Contains(err.Error(), "\n") ||
				!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file) || state(fl) != before {
				t.Errorf("%.60q: %v, want %q", text, err, want)
			}
		}
	}
	missing := filepath.Join(t.TempDir(), "missing.yaml")
	if err := Read(missing, given(t)); err == nil || !strings.Contains(err.Error(), missing+": no such file") {
		t.Error(err)
	}
}

// FuzzFile: any text is read, or refused with an error; flags keep their defaults then.
func FuzzFile(f *testing.F) {
	for _, text := range []string{"max-pods: 3\n", "a: &x [1]\nb: *x\n", "etcd-servers: &a [*a]\n",
		"cluster-dns: &a\n- 10.0.0.1\nnode-name: *a"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		values, err := parse(text)
		if err != nil {
			return
		}
		fl := given(t)
		if before := state(fl); fl.set(values) != nil && state(fl) != before {
			t.Errorf("%q: after an error:\n%s", text, state(fl))
		}
	})
}
