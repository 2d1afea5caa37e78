// Package userconfig adds a context to a user's own kubeconfig, and keeps everything else in it.
package userconfig

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"go.yaml.in/yaml/v3"

	"carob/internal/base/atomicfile"
)

// AddContext copies the one context of a kubeconfig into another file under a new name and makes it
// the current one. Everything else in the file stays, including comments and unknown fields.
func AddContext(old, admin []byte, name string) ([]byte, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(old, &doc); err != nil {
		return nil, fmt.Errorf("not a kubeconfig: %w", err)
	}
	if len(doc.Content) == 0 || doc.Content[0].Tag == "!!null" { // an empty file
		doc = yaml.Node{Kind: yaml.DocumentNode, Content: []*yaml.Node{{Kind: yaml.MappingNode}}}
	}
	top := doc.Content[0]
	if top.Kind != yaml.MappingNode {
		return nil, errors.New("not a kubeconfig")
	}
	var from struct {
		Clusters []struct{ Cluster yaml.Node }
		Users    []struct{ User yaml.Node }
	}
	if err := yaml.Unmarshal(admin, &from); err != nil {
		return nil, fmt.Errorf("read the cluster's kubeconfig: %w", err)
	}
	if len(from.Clusters) != 1 || len(from.Users) != 1 {
		return nil, fmt.Errorf("the cluster's kubeconfig has %d clusters and %d users, not one", len(from.Clusters),
			len(from.Users))
	}
	setIfAbsent(top, "apiVersion", "v1")
	setIfAbsent(top, "kind", "Config")
	context := mapping("cluster", text(name), "user", text(name))
	for _, part := range []struct {
		list, field string
		value       *yaml.Node
	}{{"clusters", "cluster", &from.Clusters[0].Cluster}, {"contexts", "context", context},
		{"users", "user", &from.Users[0].User}} {
		if err := setNamed(top, part.list, name, part.field, part.value); err != nil {
			return nil, err
		}
	}
	set(top, "current-context", text(name))
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	if err := e.Encode(&doc); err != nil {
		return nil, fmt.Errorf("write kubeconfig: %w", err)
	}
	return out.Bytes(), nil
}

func text(s string) *yaml.Node {
	n := &yaml.Node{}
	n.SetString(s)
	return n
}

func mapping(pairs ...any) *yaml.Node {
	m := &yaml.Node{Kind: yaml.MappingNode}
	for i := 0; i < len(pairs); i += 2 {
		m.Content = append(m.Content, text(pairs[i].(string)), pairs[i+1].(*yaml.Node))
	}
	return m
}

// value returns a field of a mapping, or nil.
func value(m *yaml.Node, field string) *yaml.Node {
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == field {
			return m.Content[i+1]
		}
	}
	return nil
}

func set(m *yaml.Node, field string, v *yaml.Node) {
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == field {
			m.Content[i+1] = v
			return
		}
	}
	m.Content = append(m.Content, text(field), v)
}

func setIfAbsent(m *yaml.Node, field, v string) {
	if value(m, field) == nil {
		set(m, field, text(v))
	}
}

// setNamed sets a field of the element with a name and adds the element if it is missing. Other
// fields of a context, such as its namespace, stay.
func setNamed(top *yaml.Node, list, name, field string, v *yaml.Node) error {
	l := value(top, list)
	if l == nil || l.Tag == "!!null" {
		l = &yaml.Node{Kind: yaml.SequenceNode}
		set(top, list, l)
	}
	if l.Kind != yaml.SequenceNode {
		return fmt.Errorf("its %s are not a list", list)
	}
	l.Style = 0 // also for []
	for _, e := range l.Content {
		if e.Kind != yaml.MappingNode || value(e, "name") == nil || value(e, "name").Value != name {
			continue
		}
		if had := value(e, field); field == "context" && had != nil && had.Kind == yaml.MappingNode {
			for i := 0; i+1 < len(v.Content); i += 2 {
				set(had, v.Content[i].Value, v.Content[i+1])
			}
			return nil
		}
		set(e, field, v)
		return nil
	}
	l.Content = append(l.Content, mapping("name", text(name), field, v))
	return nil
}

// FollowLinks resolves the links of a path; the file need not exist.
func FollowLinks(path string) (string, error) {
	to, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		return filepath.Abs(path)
	}
	return to, err
}

// Lock locks the file against kubectl and others, with the lock file that they use.
func Lock(file string) (unlock func(), err error) {
	lock := file + ".lock"
	f, err := os.OpenFile(lock, os.O_CREATE|os.O_EXCL, 0)
	if errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("another process is writing %s: try again, or remove %s if no process writes it", file, lock)
	}
	if err != nil {
		return nil, fmt.Errorf("lock kubeconfig: %w", err)
	}
	_ = f.Close()
	return func() { _ = os.Remove(lock) }, nil
}

// MakeOwned creates a directory with the owner of its parent.
func MakeOwned(dir string) error {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	parent := filepath.Dir(dir)
	if err := MakeOwned(parent); err != nil {
		return err
	}
	like, err := os.Stat(parent)
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return copyOwner(dir, like)
}

// ReplaceOwned replaces a file atomically and keeps its owner, for `sudo carob kubeconfig --merge`.
func ReplaceOwned(file string, content []byte) error {
	owner, statErr := os.Stat(file)
	if errors.Is(statErr, fs.ErrNotExist) {
		owner, statErr = os.Stat(filepath.Dir(file))
	}
	if err := atomicfile.Write(file, content, 0o600); err != nil {
		return err
	}
	if statErr != nil {
		return statErr
	}
	return copyOwner(file, owner)
}

// copyOwner gives a file the owner of another.
func copyOwner(file string, like fs.FileInfo) error {
	st, ok := like.Sys().(*syscall.Stat_t)
	if !ok || os.Geteuid() != 0 {
		return nil
	}
	return os.Chown(file, int(st.Uid), int(st.Gid))
}
