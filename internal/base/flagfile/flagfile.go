// Package flagfile sets flags of a command from a YAML file whose keys are the names of the flags, as in k3s's
// config.yaml. The command line drives it; it must never change a flag that is set already, or one of a file that is
// wrong.
package flagfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"carob/internal/base/instance"
)

const (
	// maxFile is the maximum size of a file in bytes.
	maxFile = 1 << 20
	// CommaSeparated is the annotation of flags whose value is a list with commas; a file may write it as a YAML list.
	CommaSeparated = "carob_comma_separated"
)

// Flags are those that a file can set.
type Flags struct {
	*pflag.FlagSet
	Except []string                 // names of flags that a file cannot set
	KindOf func(pflag.Value) string // describes the values that a flag accepts
}

// Read sets the flags that are not set yet from a file. Nothing is set if anything in the file is wrong; the error is
// of kind instance.ErrFlag and names the file and the line.
func Read(name string, flags Flags) error {
	values, err := parseFile(name)
	if err == nil {
		err = flags.set(values)
	}
	if err != nil {
		return fmt.Errorf("%w --config: %s%w", instance.ErrFlag, name, err)
	}
	return nil
}

// setting is an entry of a configuration file.
type setting struct {
	key, value *yaml.Node
}

// fileError is an error in a line of a configuration file; line 0 is the file as a whole.
type fileError struct {
	line int
	text string
}

func (e fileError) Error() string {
	if e.line == 0 {
		return ": " + e.text
	}
	return fmt.Sprintf(":%d: %s", e.line, e.text)
}

func wrongLine(at *yaml.Node, format string, args ...any) error {
	return fileError{at.Line, fmt.Sprintf(format, args...)}
}

// parseFile returns the entries of a file in their order. An empty file has none.
func parseFile(name string) ([]setting, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fileError{text: withoutPath(err)}
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fileError{text: withoutPath(err)}
	}
	if len(text) > maxFile {
		return nil, fileError{text: fmt.Sprintf("it has more than %d bytes", maxFile)}
	}
	return parse(string(text))
}

// withoutPath is the reason of a failed system call, without the path, which the caller names.
func withoutPath(err error) string {
	if p, ok := errors.AsType[*os.PathError](err); ok {
		return p.Err.Error()
	}
	return err.Error()
}

func parse(text string) ([]setting, error) {
	docs := yaml.NewDecoder(strings.NewReader(text))
	var doc, second yaml.Node
	err := docs.Decode(&doc)
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	if err != nil {
		return nil, fileError{text: "it is not YAML: " + firstErrorLine(err)}
	}
	if err := docs.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, fileError{text: "it has more than one document"}
	}
	top := doc.Content[0]
	if top.Kind == yaml.ScalarNode && top.Tag == "!!null" { // comments only
		return nil, nil
	}
	if top.Kind != yaml.MappingNode {
		return nil, wrongLine(top, "it is not a list of FLAG: VALUE lines")
	}
	var all []setting
	lines := map[string]int{}
	for i := 0; i+1 < len(top.Content); i += 2 {
		key, value := top.Content[i], top.Content[i+1]
		if before, ok := lines[key.Value]; ok {
			return nil, wrongLine(key, "%q is already in line %d", key.Value, before)
		}
		lines[key.Value] = key.Line
		all = append(all, setting{key, value})
	}
	return all, nil
}

// firstErrorLine is an error of the YAML library without its prefix, in one line.
func firstErrorLine(err error) string {
	text, _, _ := strings.Cut(strings.TrimPrefix(err.Error(), "yaml: "), "\n")
	return text
}

// set sets the flags that are not set yet. Values of flags that are set are checked and have no effect.
func (fl Flags) set(values []setting) error {
	type change struct {
		f     *pflag.Flag
		texts []string
	}
	var changes []change
	for _, v := range values {
		f, err := fl.named(v.key)
		if err != nil {
			return err
		}
		texts, err := fl.texts(f, v.value)
		if err != nil {
			return err
		}
		before := textsNow(f)
		wrong := assign(f, texts)
		if err := assign(f, before); err != nil { // also after an error: some flags lose their value then
			return fmt.Errorf("%s: restore the value: %w", f.Name, err)
		}
		if wrong != nil {
			return wrongLine(v.value, "%s: %q is not %s", f.Name, strings.Join(texts, ","), fl.KindOf(f.Value))
		}
		if !f.Changed {
			changes = append(changes, change{f, texts})
		}
	}
	for _, c := range changes {
		if err := assign(c.f, c.texts); err != nil {
			return fmt.Errorf("%s: %w", c.f.Name, err)
		}
		c.f.Changed = true
	}
	return nil
}

// assign replaces the value of a flag; only flags of lists can have another number of texts than one.
func assign(f *pflag.Flag, texts []string) error {
	if list, ok := f.Value.(pflag.SliceValue); ok {
		return list.Replace(texts)
	}
	return f.Value.Set(strings.Join(texts, ","))
}

// textsNow is the value of a flag, as assign takes it.
func textsNow(f *pflag.Flag) []string {
	if list, ok := f.Value.(pflag.SliceValue); ok {
		return list.GetSlice()
	}
	return []string{f.Value.String()}
}

// named is the flag that a key names.
func (fl Flags) named(key *yaml.Node) (*pflag.Flag, error) {
	if key.Kind != yaml.ScalarNode {
		return nil, wrongLine(key, "the key is not the name of a flag")
	}
	f := fl.Lookup(key.Value)
	switch {
	case f != nil && slices.Contains(fl.Except, f.Name):
		return nil, wrongLine(key, "%s cannot be set in this file", f.Name)
	case f != nil:
		return f, nil
	case key.Value == "apiVersion" || key.Value == "kind":
		return nil, wrongLine(key, "unknown key %q: the keys are names of flags; a KubeletConfiguration belongs in "+
			"the file of kubelet-config", key.Value)
	}
	if like := strings.ReplaceAll(strings.TrimLeft(strings.ToLower(key.Value), "-"), "_", "-"); fl.Lookup(like) != nil {
		return nil, wrongLine(key, "unknown key %q; did you mean %s?", key.Value, like)
	}
	return nil, wrongLine(key, "unknown key %q: there is no such flag", key.Value)
}

// texts is the value of an entry as the command line would have it: one text, or those of a list.
func (fl Flags) texts(f *pflag.Flag, value *yaml.Node) ([]string, error) {
	if value.Kind == yaml.AliasNode {
		value = value.Alias
	}
	_, isList := f.Value.(pflag.SliceValue)
	switch {
	case value.Kind == yaml.ScalarNode && value.Tag == "!!null":
		return nil, wrongLine(value, "%s has no value", f.Name)
	case value.Kind == yaml.ScalarNode && isList:
		return strings.Split(value.Value, ","), nil
	case value.Kind == yaml.ScalarNode:
		return []string{value.Value}, nil
	case value.Kind == yaml.SequenceNode && (isList || f.Annotations[CommaSeparated] != nil):
		return listOf(f, value)
	case value.Kind == yaml.SequenceNode:
		return nil, wrongLine(value, "%s is %s, not a list", f.Name, fl.KindOf(f.Value))
	}
	what := fl.KindOf(f.Value)
	if isList {
		what = "a list"
	}
	return nil, wrongLine(value, "%s is %s, not a mapping", f.Name, what)
}

func listOf(f *pflag.Flag, list *yaml.Node) ([]string, error) {
	texts := []string{}
	for _, item := range list.Content {
		switch {
		case item.Kind != yaml.ScalarNode || item.Tag == "!!null":
			return nil, wrongLine(item, "%s: an entry of the list is not a value", f.Name)
		case strings.Contains(item.Value, ","):
			return nil, wrongLine(item, "%s: an entry of the list has a comma: %q", f.Name, item.Value)
		}
		texts = append(texts, item.Value)
	}
	return texts, nil
}
