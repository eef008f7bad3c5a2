module moldau.test/client

go 1.24

require github.com/twmb/franz-go v1.18.1
